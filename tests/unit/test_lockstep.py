"""The lockstep engine: steps of hand-written local programs against the same mathematics on one device."""

from __future__ import annotations

import pytest
import torch

from programs import argument, collective, program, split
from samite.errors import InputError, MeshError, VerifyError, WorkerError
from samite.hal.engine import Engine, Workers
from samite.hal.program import Program, Result
from samite.layout import Factor, Layout
from samite.mesh import Mesh
from samite.runtime.lockstep import Lockstep, LockstepWorkers, Plugin

MESH = Mesh(("dp", "tp"), (2, 2), engine="lockstep")
OWED = Layout((), "sum", frozenset({"dp"}))


def start(mesh: Mesh = MESH) -> LockstepWorkers:
    return Lockstep().start(mesh, {})


def sgd_program() -> Program:
    """loss = sum((x w)^2) with x split over dp and w over tp; w is updated in its place."""

    def step(x: torch.Tensor, w: torch.Tensor, lr: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x @ w
        loss = collective.all_reduce((y * y).sum(), "tp", "sum")
        gradient = collective.all_reduce(2 * x.T @ y, "dp", "sum")
        return loss, w - lr * gradient

    return program(
        step,
        [
            argument("x", split(6, 4, dp=0)),
            argument("w", split(4, 6, tp=1), kind="state"),
            argument("lr", Layout(()), kind="scalar"),
        ],
        [Result("loss", "float32", OWED), Result("w", "float32", split(4, 6, tp=1), alias=1)],
        MESH,
    )


def test_a_step_is_what_one_device_does() -> None:
    workers = start()
    handle = workers.load(sgd_program(), {})
    x, w = torch.randn(6, 4), torch.randn(4, 6)
    workers.write(1, w, split(4, 6, tp=1))
    for step in range(3):
        loss = ((x @ w) ** 2).sum()
        w = w - 0.01 * 2 * x.T @ (x @ w)
        future = workers.run(handle, [x, 1, torch.tensor(0.01)], [2, 1])
        future.result()
        assert future.done()
        torch.testing.assert_close(workers.read(2), loss, msg=f"loss of step {step}")
        torch.testing.assert_close(workers.read(1), w, msg=f"w after step {step}")


def test_what_a_caller_does_to_its_tensors_later_is_not_seen() -> None:
    same = program(lambda x: (x,), [argument("x", split(4))], [Result("x", "float32", split(4))], MESH)
    workers = start()
    given = torch.ones(4)
    workers.write(0, given, split(4))
    workers.run(workers.load(same, {}), [given], [1])
    given.zero_()
    assert workers.read(0).tolist() == workers.read(1).tolist() == [1.0] * 4
    workers.read(0).zero_()
    assert workers.read(0).tolist() == [1.0] * 4


def test_relying_on_padding_shows() -> None:
    cut = Layout(((Factor(3, ("dp",)),),))
    sloppy = program(
        lambda x: (x.sum(),), [argument("x", cut)], [Result("total", "float32", OWED)], MESH, name="sloppy"
    )
    workers = start()
    workers.run(workers.load(sloppy, {}), [torch.ones(3)], [0])
    assert workers.read(0).isnan()


def test_replicas_that_differ_are_found_at_the_read() -> None:
    wrong = program(lambda x: (x.sum(),), [argument("x", split(4, dp=0))], [Result("total", "float32", split())], MESH)
    workers = start()
    workers.run(workers.load(wrong, {}), [torch.arange(4.0)], [0])
    with pytest.raises(VerifyError, match="replicas"):
        workers.read(0)
    unchecked = Lockstep().start(MESH, {"debug_checks": False})
    unchecked.run(unchecked.load(wrong, {}), [torch.arange(4.0)], [0])
    assert unchecked.read(0).item() == 1.0


def test_a_step_that_raises_leaves_every_buffer_as_it_was() -> None:
    def fails(w: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (w + 1, w.index_select(0, i))

    broken = program(
        fails,
        [argument("w", split(2), kind="state"), argument("i", split(1), dtype="int64")],
        [Result("w", "float32", split(2), alias=0), Result("y", "float32", split(1))],
        MESH,
    )
    workers = start()
    workers.write(0, torch.zeros(2), split(2))
    handle = workers.load(broken, {})
    with pytest.raises(WorkerError, match="index_select"):
        workers.run(handle, [0, torch.tensor([5])], [0, 1])
    assert workers.read(0).tolist() == [0.0, 0.0]
    workers.run(handle, [0, torch.tensor([1])], [0, 1])
    assert workers.read(0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(4, 3), r"float32\[4, 3\], the program takes float32\[2, 3\]"),
        (torch.zeros(2, 3, dtype=torch.float64), "float64"),
        (torch.zeros(2, 3, device="meta"), "on meta"),
        (7, "no buffer 7"),
        (0, "laid out as"),
    ],
)
def test_arguments_that_do_not_fit(given: torch.Tensor | int, message: str) -> None:
    workers = start()
    workers.write(0, torch.zeros(2, 3), split(2, 3, dp=0))
    same = program(lambda x: (x + 0,), [argument("x", split(2, 3))], [Result("y", "float32", split(2, 3))], MESH)
    handle = workers.load(same, {})
    with pytest.raises(InputError, match=message):
        workers.run(handle, [given], [1])


def test_a_freed_buffer_is_gone() -> None:
    workers = start()
    workers.write(0, torch.zeros(2), split(2))
    workers.free([0, 5])
    with pytest.raises(InputError, match="no buffer 0"):
        workers.read(0)


def test_the_largest_mesh() -> None:
    mesh = Mesh(("dp", "tp"), (8, 8))
    total = program(
        lambda x: (collective.all_reduce(x.sum(), "dp,tp", "sum"),),
        [argument("x", split(64, 8, dp=0, tp=1))],
        [Result("total", "float32", split())],
        mesh,
    )
    workers = start(mesh)
    workers.run(workers.load(total, {}), [torch.ones(64, 8)], [0])
    assert workers.read(0).item() == 512
    with pytest.raises(MeshError, match="128 ranks"):
        start(Mesh(("dp", "tp"), (16, 8)))


def test_it_is_what_the_contracts_ask_for() -> None:
    assert isinstance(Plugin().samite_add_engines()["lockstep"](), Engine)
    assert isinstance(start(), Workers)
