"""The fuzzer: a short run, and that it finds what is wrong. A long one is `python -m samite.testing.fuzz`."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, settings

from samite.runtime.interpreter import REDUCE
from samite.testing.fuzz.check import Different, check
from samite.testing.fuzz.families import FAMILIES
from samite.testing.fuzz.pool import Pool, Unfit, Value
from samite.testing.fuzz.programs import Program, programs

A_PROGRAM = Program(
    shapes=((5, 4), (4,)),
    lines=("v0 = x0 * x1", "v1 = v0.amax(dim=[0], keepdim=False)", "v2 = v1.cumsum(-1)"),
    results=("v1", "v2"),
    mesh=(("a", 2), ("b", 3)),
    placements=((("a", 0), ("b", 1)), (("b", 0),)),
)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs(most=20))
def test_random_programs(program: Program) -> None:
    note(program.script)
    check(program)


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest of a split dim is not the sum of what the ranks find."""
    check(A_PROGRAM)
    monkeypatch.setitem(REDUCE, "max", torch.add)
    with pytest.raises(Different, match="v1 is"):
        check(A_PROGRAM)


def test_the_script_of_a_program_runs_and_shows_both_sides() -> None:
    done = subprocess.run(
        [sys.executable, "-c", A_PROGRAM.script], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.count("tensor([") + done.stdout.count("Tensor([") >= 8


def test_every_family_has_calls_that_torch_takes() -> None:
    drawn: set[str] = set()

    @settings(max_examples=150, deadline=None, derandomize=True, phases=[Phase.generate], database=None)
    @given(programs(least=10))
    def collect(program: Program) -> None:
        drawn.update(word for line in program.lines for word in line.replace("(", " ").replace(".", " ").split())

    collect()
    for word in ("amax", "argmax", "cat", "cumsum", "einsum", "gather", "index_put", "layer_norm", "matmul", "mul_",
                 "narrow", "reshape", "scatter_add", "softmax", "sort", "topk", "var", "where"):  # fmt: skip
        assert word in drawn


def test_an_op_that_jumps_only_takes_what_is_exact() -> None:
    pool = Pool(lambda strategy: strategy.example(), [Value("v0", torch.zeros(2), exact=False)])
    for family in FAMILIES:
        if family.name in ("bent", "choice", "mask", "extreme", "ordered", "place"):
            with pytest.raises(Unfit):
                family.draw(pool)
