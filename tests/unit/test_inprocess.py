"""The engine without processes: one rank, run here by the cpu backend."""

from __future__ import annotations

import pytest
import torch

from programs import argument, program, split
from samite import plugins
from samite.errors import InputError, MeshError, WorkerError
from samite.hal.engine import Workers
from samite.hal.program import Program, Result
from samite.mesh import Mesh
from samite.runtime.inprocess import InProcess, InProcessWorkers

ONE = Mesh(("dp",), (1,), engine="inprocess")


def momentum() -> Program:
    def step(w: torch.Tensor, m: torch.Tensor, g: torch.Tensor, lr: torch.Tensor) -> tuple[torch.Tensor, ...]:
        m = 0.9 * m + g
        return m, (w * w).sum(), w - lr * m

    return program(
        step,
        [
            argument("w", split(3, 2), kind="state"),
            argument("m", split(3, 2), kind="state"),
            argument("g", split(3, 2)),
            argument("lr", split(), kind="scalar"),
        ],
        [
            Result("m", "float32", split(3, 2), alias=1),
            Result("loss", "float32", split()),
            Result("w", "float32", split(3, 2), alias=0),
        ],
        ONE,
    )


def start() -> InProcessWorkers:
    return InProcess().start(ONE, {})


def test_steps_over_two_sets_of_state() -> None:
    workers = start()
    handle = workers.load(momentum(), {})
    expected = {}
    for first in (0, 10):
        w, m = torch.randn(3, 2), torch.zeros(3, 2)
        workers.write(first, w, split(3, 2))
        workers.write(first + 1, m, split(3, 2))
        expected[first] = (w, m)
    for _ in range(3):
        for first, (w, m) in expected.items():
            g = torch.randn(2, 3).T
            workers.run(handle, [first, first + 1, g, torch.tensor(0.1)], [first + 1, 50, first]).result()
            torch.testing.assert_close(workers.read(50), (w * w).sum())
            m = 0.9 * m + g
            expected[first] = (w - 0.1 * m, m)
    for first, (w, m) in expected.items():
        torch.testing.assert_close(workers.read(first), w)
        torch.testing.assert_close(workers.read(first + 1), m)


def test_a_value_written_in_mid_training_is_used() -> None:
    workers = start()
    handle = workers.load(momentum(), {})
    for value in (1.0, 2.0):
        for buffer in (0, 1):
            workers.write(buffer, torch.full((3, 2), value), split(3, 2))
        workers.run(handle, [0, 1, torch.zeros(3, 2), torch.tensor(0.0)], [1, 2, 0])
        assert workers.read(2).item() == 6 * value**2


def test_views_and_arguments_as_results() -> None:
    turned = program(
        lambda w, x: (w.T.contiguous().T, x, w.T),
        [argument("w", split(3, 3), kind="state"), argument("x", split(2))],
        [
            Result("w", "float32", split(3, 3), alias=0),
            Result("x", "float32", split(2)),
            Result("t", "float32", split(3, 3)),
        ],
        ONE,
    )
    workers = start()
    w, x = torch.arange(9.0).reshape(3, 3), torch.ones(2)
    workers.write(0, w, split(3, 3))
    workers.run(workers.load(turned, {}), [0, x], [0, 1, 2])
    x.zero_()
    assert torch.equal(workers.read(0), w)
    assert torch.equal(workers.read(2), w.T)
    assert workers.read(1).tolist() == [1.0, 1.0]


def test_a_step_that_raises_changes_nothing() -> None:
    fails = program(
        lambda w, i: (w + 1, w.index_select(0, i)),
        [argument("w", split(2), kind="state"), argument("i", split(1), dtype="int64")],
        [Result("w", "float32", split(2), alias=0), Result("y", "float32", split(1))],
        ONE,
    )
    workers = start()
    workers.write(0, torch.zeros(2), split(2))
    handle = workers.load(fails, {})
    with pytest.raises(WorkerError, match="index_select"):
        workers.run(handle, [0, torch.tensor([9])], [0, 1])
    workers.restart()
    assert workers.read(0).tolist() == [0.0, 0.0]
    workers.run(handle, [0, torch.tensor([0])], [0, 1])
    assert workers.read(0).tolist() == [1.0, 1.0]


def test_bad_input() -> None:
    workers = start()
    handle = workers.load(momentum(), {})
    workers.write(0, torch.zeros(3, 2), split(3, 2))
    with pytest.raises(InputError, match="no buffer 1"):
        workers.run(handle, [0, 1, torch.zeros(3, 2), torch.tensor(0.1)], [1, 2, 0])
    workers.write(1, torch.zeros(3, 2), split(3, 2))
    with pytest.raises(InputError, match=r'"g" is float32\[3\]'):
        workers.run(handle, [0, 1, torch.zeros(3), torch.tensor(0.1)], [1, 2, 0])
    workers.free([0])
    with pytest.raises(InputError, match="no buffer 0"):
        workers.read(0)
    with pytest.raises(MeshError, match="2 ranks"):
        InProcess().start(Mesh(("dp",), (2,)), {})


def test_it_is_what_the_contracts_ask_for() -> None:
    assert isinstance(plugins.engine("inprocess"), InProcess)
    workers = start()
    assert isinstance(workers, Workers)
    workers.close()
