"""Programs that differ in sizes alone: one form, and one graph that serves them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from programs import argument, collective, program, split
from samite.errors import UnsupportedOp
from samite.hal.driver import Device, Executable
from samite.hal.program import Program, Result
from samite.layout import Layout
from samite.lowering import Sizes, to_fx
from samite.mesh import Mesh
from samite.runtime.interpreter import generate, run_lockstep
from samite.runtime.shared import Shared

MESH = Mesh(("dp",), (2,))
Tensors = tuple[torch.Tensor, ...]


def mean(rows: int) -> Callable[..., Tensors]:
    """Of a batch over dp: masked where a rank has fewer rows than the other, over a global count."""

    def local(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        valid = torch.arange(x.shape[0]) < collective.valid_length("dp", rows, [2])
        y = torch.where(valid[:, None], x @ w, torch.zeros(()))
        flat = y.reshape(x.shape[0] * 3)
        return (collective.all_reduce(flat.sum() / (rows * 3), "dp", "sum"), y.transpose(0, 1))

    return local


def of(rows: int, body: Callable[[int], Callable[..., Tensors]] = mean) -> Program:
    arguments = [argument("x", split(rows, 4, dp=0)), argument("w", split(4, 3))]
    return program(
        body(rows), arguments, [Result("loss", "float32", Layout(())), Result("y", "float32", split(3, 4))], MESH
    )


def test_one_form_for_many_sizes() -> None:
    programs = [of(rows) for rows in (14, 18, 22)]
    assert len({p.form for p in programs}) == 1
    assert len({p.numbers for p in programs}) == 3
    sizes = Sizes.of(programs[0].numbers, programs[1].numbers)
    # The rows, a rank's part of them, the elements of the result and those of a rank's part.
    assert set(zip(sizes.values(programs[0].numbers) or (), sizes.values(programs[2].numbers) or (), strict=True)) == {
        (14, 22),
        (7, 11),
        (42, 66),
        (21, 33),
    }


OTHERS: Mapping[str, Callable[[int], Callable[..., Tensors]]] = {
    "an op": lambda rows: lambda x, w: (x.exp().sum(), x @ w),
    "a float": lambda rows: lambda x, w: ((x * 1.5).sum(), x @ w),
    "a bool": lambda rows: lambda x, w: (x.sum(0, keepdim=True).sum(), x @ w),
    "a dtype": lambda rows: lambda x, w: (x.sum(dtype=torch.float64), x @ w),
    "an operand": lambda rows: lambda x, w: (x.sum(), x[:, :4] @ w),
}


def test_another_form() -> None:
    plain = of(14, lambda rows: lambda x, w: (x.sum(), x @ w))
    assert plain.form == of(18, lambda rows: lambda x, w: (x.sum(), x @ w)).form
    forms = [of(14, body).form for body in OTHERS.values()]
    assert len({plain.form, *forms}) == 1 + len(forms)


NUMBERS = st.lists(st.integers(0, 3), min_size=1, max_size=8)


def alike(numbers: list[int]) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 3), min_size=len(numbers), max_size=len(numbers))


@given(NUMBERS.flatmap(lambda one: st.tuples(st.just(one), alike(one), alike(one))))
def test_sizes(numbers: tuple[list[int], list[int], list[int]]) -> None:
    one, other, third = numbers
    sizes = Sizes.of(one, other)

    def put(values: Sequence[int]) -> list[int]:
        return [n if c < 0 else values[c] for n, c in zip(sizes.numbers, sizes.columns, strict=True)]

    for known in (one, other):
        values = sizes.values(known)
        assert values is not None
        assert len(values) == sizes.count
        assert put(values) == known
    values = sizes.values(third)
    if values is None:
        fixed = [t for t, c in zip(third, sizes.columns, strict=True) if c < 0]
        ways = {tuple({t for t, c in zip(third, sizes.columns, strict=True) if c == k}) for k in range(sizes.count)}
        assert fixed != [o for o, c in zip(other, sizes.columns, strict=True) if c < 0] or any(len(w) > 1 for w in ways)
    else:
        assert put(values) == third


def test_one_code_computes_all() -> None:
    first, second = of(14), of(18)
    sizes = Sizes.of(first.numbers, second.numbers)
    code = generate(to_fx(second, sizes), "step")
    for rows in (14, 18, 22, 13, 5, 7):
        here = of(rows)
        values = sizes.values(here.numbers)
        assert here.form == first.form
        assert values is not None
        x, w = torch.randn(rows, 4), torch.randn(4, 3)
        half = (rows + 1) // 2
        padded = torch.cat([x, torch.full((2 * half - rows, 4), float("nan"))])
        inputs = [[padded[rank * half : (rank + 1) * half], w, *values] for rank in (0, 1)]
        mains = [code.bind(MESH, rank) for rank in (0, 1)]
        outputs = run_lockstep(mains, inputs, MESH, code)
        torch.testing.assert_close(outputs[0][0], (x @ w).mean())
        own = generate(to_fx(here), "step")
        plain = run_lockstep([own.bind(MESH, r) for r in (0, 1)], [i[:2] for i in inputs], MESH, own)  # type: ignore[misc]
        for a, b in zip(outputs, plain, strict=True):
            assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


class Made(Executable):
    def __init__(self, program: Program, resizes: bool) -> None:
        self.program, self.resizes = program, resizes

    def resized(self, program: Program) -> Executable | None:
        return Made(program, True) if self.resizes else None

    def bind(self, *_: Any) -> Any:
        raise UnsupportedOp("nothing runs here")


class Driver:
    def __init__(self, resizes: bool = True) -> None:
        self.compiled: list[tuple[str, Mapping[str, Any]]] = []
        self.resizes = resizes

    def compile(self, program: Program, devices: Sequence[Device], options: Mapping[str, Any]) -> Executable:
        self.compiled.append((program.form, options))
        return Made(program, self.resizes)


@pytest.mark.parametrize("resizes", [True, False])
def test_programs_of_one_form_share_an_executable_where_the_driver_can(resizes: bool) -> None:
    driver = Driver(resizes)
    shared: Any = Shared(driver)  # type: ignore[arg-type]
    for rows in (14, 18, 22):
        assert shared.compile(of(rows), [], {"mode": "aten"}).program == of(rows)
    assert len(driver.compiled) == (1 if resizes else 3)
    shared.compile(of(14), [], {"mode": "inductor"})
    shared.compile(of(14, OTHERS["an op"]), [], {"mode": "aten"})
    assert len(driver.compiled) == (3 if resizes else 5)


def test_a_program_of_no_known_form_shares_nothing() -> None:
    driver = Driver()
    shared: Any = Shared(driver)  # type: ignore[arg-type]
    for rows in (14, 18):
        known = of(rows)
        shared.compile(Program(known.name, known.mesh, known.module, known.arguments, known.results), [], {})
    assert len(driver.compiled) == 2
