"""Compiled functions on inputs of many sizes: one capture, and at every size the numbers of one device."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samite
from lockstep_training import DATA_PARALLEL, Batches, Placements, train_both, train_step
from models import CNN, GPT, MLP, batch, images
from samite import Shard
from samite.errors import InputError
from samite.frontend import StateTree
from samite.testing.counter_rng import counter_rng


def vectors(size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 16, generator=generator), torch.randint(0, 8, (size,), generator=generator)


def pictures(size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    pixels, labels = images(size, 3, 8, 8, seed=seed)
    return pixels.double(), labels


def tokens(size: int, time: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return batch(32, size, time, seed=seed)


def in_turn(make: Callable[..., tuple[Tensor, Tensor]], *sizes: Sequence[int]) -> Batches:
    return lambda step: make(*sizes[step % len(sizes)], seed=step)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[samite.api.Compiled]:
    """The functions that a test compiles."""
    compiled: list[samite.api.Compiled] = []
    compile: Any = samite.compile

    def noted(*args: Any, **kwargs: Any) -> Any:
        compiled.append(compile(*args, **kwargs))
        return compiled[-1]

    monkeypatch.setattr(samite, "compile", noted)
    return compiled


def origins(compiled: samite.api.Compiled) -> list[str]:
    return [made.origin for made in compiled.compilations]


def lockstep(**axes: int) -> Any:
    return samite.mesh("cpu", engine="lockstep", **axes)


COLUMNS: Placements = {"model.blocks.*.up.weight": {"tp": Shard(0)}}
SEQUENCE: Placements = {"inputs": {"sp": Shard(1)}, "targets": {"sp": Shard(1)}}


@pytest.mark.parametrize(
    "model, batches, axes, placements, programs",
    [
        (MLP, in_turn(vectors, [8], [7], [5], [1], [2]), {"dp": 2}, DATA_PARALLEL, 5),
        (MLP, in_turn(vectors, [8], [3], [2], [7]), {"dp": 4}, DATA_PARALLEL, 4),
        (MLP, in_turn(vectors, [8], [6], [5]), {"dp": 2}, {**DATA_PARALLEL, "model.*": {"dp": Shard(0)}}, 3),
        (lambda: CNN().double(), in_turn(pictures, [4], [7], [3]), {"dp": 2}, DATA_PARALLEL, 3),
        (lambda: GPT(layers=1), in_turn(tokens, [4, 8], [3, 6], [2, 9]), {"dp": 2}, {**DATA_PARALLEL, **COLUMNS}, 3),
        (lambda: GPT(layers=1), in_turn(tokens, [2, 8], [2, 7], [2, 5]), {"sp": 2}, SEQUENCE, 3),
    ],
    ids=["uneven, and one row", "empty ranks", "fully sharded", "batch statistics", "batch and time", "sequence split"],
)
def test_training(
    made: list[samite.api.Compiled],
    model: Callable[[], nn.Module],
    batches: Batches,
    axes: dict[str, int],
    placements: Placements,
    programs: int,
) -> None:
    axes = {**axes, "tp": 2} if "model.blocks.*.up.weight" in placements else axes
    tolerance = 1e-9 if batches(0)[0].dtype == torch.float64 else 1e-5
    train_both(model(), batches, axes, placements, steps=programs + 1, tolerance=tolerance)
    # The first step has a program of its own: gradients are not there. The one of a single row is captured as it is.
    found = [origin for origin in origins(made[0])[1:] if origin != "capture"]
    assert found == ["symbolic capture"] + ["instance"] * (len(found) - 1)
    assert len(found) >= programs - 2


def test_dropout_is_that_of_one_device_at_every_size() -> None:
    def forward(model: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.dropout(model(x), 0.5)

    model = nn.Linear(4, 6)
    run = samite.compile(forward, mesh=lockstep(dp=2), placements={"x": {"dp": Shard(0)}})
    for call, size in enumerate((8, 7, 5, 8, 3)):
        x = torch.randn(size, 4)
        with counter_rng(torch.initial_seed() + call):
            wanted = forward(copy.deepcopy(model), x)
        got = run(model, x).clone()
        torch.testing.assert_close(got, wanted.detach())
        assert torch.equal(got == 0, wanted == 0)
    assert origins(run) == ["capture", "symbolic capture", "instance", "instance"]


def test_an_epoch_is_captured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train_step(model, optimizer, *vectors(64))
    calls: list[int] = []
    forward = MLP.forward
    monkeypatch.setattr(MLP, "forward", lambda *args: calls.append(1) or forward(*args))
    run = samite.compile(train_step, mesh=lockstep(dp=2), placements=DATA_PARALLEL)
    for _ in range(2):
        for size in (64, 64, 64, 17):
            run(model, optimizer, *vectors(size))
    assert len(calls) == 2
    assert [(made.shapes["inputs"], made.origin) for made in run.compilations] == [
        ((64, 16), "capture"),
        ((17, 16), "symbolic capture"),
    ]
    assert all(made.seconds > 0 for made in run.compilations)
    run(model, optimizer, *vectors(40))
    assert len(calls) == 2
    assert origins(run)[2:] == ["instance"]


def test_known_sizes_in_turn_walk_no_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    model, run = nn.Linear(4, 4), samite.compile(lambda model, x: model(x), mesh=lockstep(dp=2))
    for size in (6, 4, 5):
        run(model, torch.randn(size, 4))
    monkeypatch.setattr(StateTree, "from_call", None)
    for size in (4, 5, 6, 5):
        x = torch.randn(size, 4)
        torch.testing.assert_close(run(model, x).clone(), model(x).detach())


def double(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 5 else x + 1


def test_where_the_function_takes_another_way_it_is_captured_again() -> None:
    run = samite.compile(double, mesh=lockstep(dp=2), placements={"x": {"dp": Shard(0)}})
    for size in (8, 7, 4, 3, 9, 6, 5):
        assert run(torch.ones(size)).tolist() == double(torch.ones(size)).tolist()
    assert origins(run) == ["capture", "symbolic capture", "symbolic capture", *["instance"] * 4]


def rows(x: Tensor) -> Tensor:
    return torch.stack([x[i] * i for i in range(x.shape[0])])


def test_a_size_that_the_function_needs_is_captured_each_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "samite")
    run = samite.compile(rows, mesh=lockstep(dp=2), placements={"x": {"dp": Shard(1)}})
    for shape in ((3, 4), (4, 4), (5, 4), (4, 4), (4, 6), (4, 7)):
        x = torch.randn(*shape)
        torch.testing.assert_close(run(x).clone(), rows(x))
    assert origins(run) == ["capture", "capture", "capture", "symbolic capture", "instance"]
    line = rows.__code__.co_firstlineno + 1
    [told] = [record.getMessage() for record in caplog.records if "one program a size" in record.getMessage()]
    assert "dim 0 of x" in told
    assert f"test_dynamic_sizes.py:{line}" in told


def kind(x: Tensor) -> Tensor:
    return x if isinstance(x.shape[0], int) else -x


def looked_up(x: Tensor) -> Tensor:
    return x * {4: 2.0, 6: 3.0, 8: 4.0}[x.shape[0]]


@pytest.mark.parametrize("fn", [kind, looked_up])
def test_python_that_cannot_do_with_symbols_runs_for_each_size(
    fn: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "samite")
    run = samite.compile(fn, mesh=lockstep(dp=2), placements={"x": {"dp": Shard(0)}})
    for size in (4, 6, 8):
        assert run(torch.ones(size)).tolist() == fn(torch.ones(size)).tolist()
    assert origins(run) == ["capture"] * 3
    [told] = [record.getMessage() for record in caplog.records if "one program a size" in record.getMessage()]
    assert f"test_dynamic_sizes.py:{fn.__code__.co_firstlineno + 1}" in told


def test_never() -> None:
    run = samite.compile(lambda x: x + 1, mesh=lockstep(dp=2), dynamic=False)
    for size in (4, 6, 8, 6):
        assert run(torch.ones(size)).tolist() == [2.0] * size
    assert origins(run) == ["capture"] * 3


def test_from_the_first_call_on() -> None:
    run = samite.compile(lambda x, y: x @ y, mesh=lockstep(dp=2), dynamic=True, placements={"x": {"dp": Shard(0)}})
    for n, k, m in ((6, 4, 4), (3, 4, 4), (7, 5, 5), (7, 5, 3), (2, 9, 4)):
        x, y = torch.randn(n, k), torch.randn(k, m)
        torch.testing.assert_close(run(x, y).clone(), x @ y)
    # Sizes that are equal in all calls so far are taken to be one; k = m ends with the fourth.
    assert origins(run) == ["symbolic capture", "instance", "instance", "symbolic capture", "instance"]


def test_returned_sizes_are_those_of_the_call() -> None:
    run = samite.compile(lambda x: (x.sum(), x.shape[0], tuple(x.shape), x.numel() / 4), mesh=lockstep(dp=2))
    for size in (4, 6, 3):
        assert run(torch.ones(size, 2))[1:] == (size, (size, 2), size / 2)


def test_a_batch_that_does_not_fit_is_refused_and_leaves_all_usable() -> None:
    model = nn.Linear(4, 4)
    run = samite.compile(lambda model, x: model(x), mesh=lockstep(dp=2), placements={"x": {"dp": Shard(0)}})
    run(model, torch.randn(4, 4))
    with pytest.raises(InputError, match=r"x is \(5, 3\)"):
        run(model, torch.randn(5, 3))
    for size in (6, 3):
        x = torch.randn(size, 4)
        torch.testing.assert_close(run(model, x).clone(), model(x).detach())
    with pytest.raises(InputError, match=r"x is \(3, 9\)"):
        run(model, torch.randn(3, 9))
    assert origins(run) == ["capture", "symbolic capture", "instance"]
