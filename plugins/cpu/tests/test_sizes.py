"""Executables for other sizes of inputs: what was made for the second program of a form serves all others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from programs import argument, collective, program, split
from samite.hal.driver import Communicator, StateSlot
from samite.hal.program import Program, Result
from samite.layout import Layout
from samite.mesh import Mesh
from samite_cpu import executable, inductor
from samite_cpu.driver import CpuDriver

MESH = Mesh(("dp",), (2,))


def of(rows: int, width: int = 4) -> Program:
    """State w, as training has it: replaced by a value that depends on a batch, which is masked where it is padded."""

    def step(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        valid = torch.arange(x.shape[0]) < collective.valid_length("dp", rows, [2])
        y = torch.where(valid[:, None], (x @ w).tanh(), torch.zeros(()))
        grown = (y * 2).reshape(-1).exp()
        part = collective.shard(torch.cat([y, y]), "dp", 0, 2)
        return w - collective.all_reduce(x.T @ y, "dp", "sum") / rows, grown.sum() / rows, part

    local = (rows + 1) // 2
    arguments = [argument("w", split(width, width), "state"), argument("x", split(rows, width, dp=0))]
    results = [
        Result("w", "float32", split(width, width), alias=0),
        Result("loss", "float32", Layout(())),
        Result("part", "float32", split(local, width)),
    ]
    return program(step, arguments, results, MESH)


class Slot(StateSlot):
    def __init__(self, value: torch.Tensor) -> None:
        self.value, self.memory = value, torch.zeros_like(value)

    def spare(self) -> torch.Tensor | None:
        return self.memory


class Twin(Communicator):
    """Two ranks that always hold the same."""

    def all_reduce(self, x: torch.Tensor, axes: tuple[str, ...], reduce_type: str) -> torch.Tensor:
        return 2 * x


def check(made: Any, rows: int, rank: int = 1) -> None:
    local = (rows + 1) // 2
    w, x = torch.randn(4, 4), torch.randn(local, 4)
    slot = Slot(w)
    (loss, part), _ = made.bind([slot], Twin(), rank).run([x])
    y = (x @ w).tanh()
    y[rows - local if rank else local :] = 0
    torch.testing.assert_close(loss, (2 * y).exp().sum() / rows)
    torch.testing.assert_close(part, y)
    torch.testing.assert_close(slot.value, w - 2 * x.T @ y / rows)
    assert slot.value is slot.memory


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that compiled, call by call."""
    calls: list[str] = []

    def noting(module: Any, name: str) -> None:
        plain: Callable[..., Any] = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: calls.append(name) or plain(*args))

    noting(executable, "_generate")
    noting(inductor, "compile_for_one_size")
    noting(inductor, "compile_for_many_sizes")
    return calls


INDUCTOR = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")


@pytest.mark.parametrize("mode", ["aten", pytest.param("inductor", marks=[INDUCTOR, pytest.mark.slow])])
def test_sizes_of_one_form(mode: str, compiled: list[str]) -> None:
    driver = CpuDriver()
    first = driver.compile(of(13), driver.devices(), {"mode": mode})
    second = first.resized(of(17))
    assert second is not None
    assert len(compiled) == 2
    check(first, 13)
    for rows in (17, 21, 14, 31, 17):
        made = second.resized(of(rows))
        assert made is not None
        check(made, rows)
        check(driver.load(made.save(), driver.devices()), rows, rank=0)
    assert len(compiled) == 2
    assert driver.load(first.save(), driver.devices()).resized(of(18)) is None, "whoever loads has no module"


def test_what_differs_in_more_is_not_resized() -> None:
    driver = CpuDriver()
    second = driver.compile(of(14), driver.devices(), {}).resized(of(18))
    assert second is not None
    assert second.resized(of(22)) is not None
    assert second.resized(of(18, width=5)) is None
    # In both the two parts of a rank are as many rows as the batch has, which need not be so.
    assert second.resized(of(13)) is None


@INDUCTOR
@pytest.mark.slow
def test_inductor_has_no_symbols_of_one_row() -> None:
    driver = CpuDriver()
    assert driver.compile(of(22), driver.devices(), {"mode": "inductor"}).resized(of(1)) is None
