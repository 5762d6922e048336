"""Hyper-parameters of optimizers: read at every call, or part of the key; never frozen in."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR
from torch.optim.sgd import sgd

import samite
from captures import assert_close, assert_same_state, check_steps, train_step
from models import MLP
from samite import Shard
from samite.errors import CaptureError
from samite.frontend import Trees, capture
from samite.frontend.groups import Group

Making = Callable[[nn.Module], Optimizer]


def rows(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 16, generator=generator), torch.randint(0, 8, (6,), generator=generator)


def one_cycle(optimizer: Optimizer) -> LRScheduler:
    return OneCycleLR(optimizer, 0.1, total_steps=14)


def cyclic(optimizer: Optimizer) -> LRScheduler:
    return CyclicLR(optimizer, 1e-3, 0.1, step_size_up=3, cycle_momentum=True)


@pytest.mark.parametrize("schedule", [one_cycle, cyclic])
@pytest.mark.parametrize("make", [
    lambda m: SGD(m.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda m: AdamW(m.parameters(), lr=0.01, eps=1e-4),
    lambda m: Adam(m.parameters(), lr=0.01, eps=1e-4, amsgrad=True, weight_decay=0.01),
], ids=["sgd", "adamw", "amsgrad"])  # fmt: skip
def test_cycled_momentum_is_one_steady_program(make: Making, schedule: Callable[[Optimizer], LRScheduler]) -> None:
    torch.manual_seed(0)
    model = MLP()
    twins = [(m, o, schedule(o)) for m, o in ((m, make(m)) for m in (model, copy.deepcopy(model)))]
    (mine, optimizer, scheduler), (plain, other, beside) = twins
    placements = {
        "batch.0": {"dp": Shard(0)}, "batch.1": {"dp": Shard(0)}, "model.layers.0.weight": {"tp": Shard(0)},
    }  # fmt: skip
    mesh = samite.mesh("cpu", engine="lockstep", dp=2, tp=2)
    run = samite.compile(train_step, mesh=mesh, placements=placements)
    for i in range(12):
        assert_close(run(mine, optimizer, *rows(i)).clone(), train_step(plain, other, *rows(i)), 1e-5)
        scheduler.step()
        beside.step()
        assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"]
    assert_same_state((mine, optimizer), (plain, other), 1e-5)
    assert len(run.compilations) == 2, "the first step's, and one for all others"


def vary(**changes: float) -> Callable[..., None]:
    """Multiplies entries of all groups, after every step."""

    def between(_: nn.Module, optimizer: Optimizer, *__: Tensor) -> None:
        for group in optimizer.param_groups:
            for key, factor in changes.items():
                value = group[key]
                group[key] = tuple(x * factor for x in value) if isinstance(value, tuple) else value * factor

    return between


VARIED: dict[str, tuple[Making, dict[str, float]]] = {
    "weight decay": (lambda m: AdamW(m.parameters(), weight_decay=0.1, eps=1e-4), {"weight_decay": 2.0}),
    "betas and eps": (lambda m: Adam(m.parameters(), betas=(0.9, 0.8), eps=1e-3), {"betas": 0.8, "eps": 2.0}),
    "added decay": (lambda m: Adam(m.parameters(), weight_decay=0.1, eps=1e-3), {"weight_decay": 0.5}),
    "amsgrad": (lambda m: Adam(m.parameters(), amsgrad=True, eps=1e-3), {"betas": 0.9}),
    "maximize": (lambda m: Adam(m.parameters(), maximize=True, eps=1e-3), {"betas": 0.9, "lr": 0.5}),
    "dampening": (
        lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.1, maximize=True),
        {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.5},
    ),
    "no dampening": (lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True), {"momentum": 0.9}),
    "plain": (lambda m: SGD(m.parameters(), lr=0.1, weight_decay=0.1), {"weight_decay": 0.5, "lr": 0.5}),
    "fused": (lambda m: AdamW(m.parameters(), fused=True, eps=1e-3), {"betas": 0.9, "weight_decay": 2.0}),
    "two groups": (
        lambda m: SGD(
            [{"params": m.layers.parameters(), "momentum": 0.5}, {"params": m.head.parameters(), "weight_decay": 0.1}],
            lr=0.1, momentum=0.9,
        ),
        {"momentum": 0.8, "weight_decay": 3.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("make, changes", VARIED.values(), ids=VARIED)
def test_changes_by_hand_are_read(make: Making, changes: dict[str, float], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = MLP().to(dtype)
    optimizer = make(model)
    x, y = rows()
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    keeps_state = optimizer.defaults.get("momentum", 1) != 0
    check_steps(
        train_step, (model, optimizer, x.to(dtype), y), steps=4, programs=1 + keeps_state, tolerance=tolerance,
        between=vary(**changes),
    )  # fmt: skip


@pytest.mark.parametrize("make", [
    lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9),
    lambda m: AdamW(m.parameters(), weight_decay=0.0, eps=1e-3),
    lambda m: Adam(m.parameters(), eps=1e-3),
], ids=["sgd", "adamw", "adam"])  # fmt: skip
def test_from_zero_and_back_is_another_program(make: Making) -> None:
    model = MLP()

    def between(_: nn.Module, optimizer: Optimizer, *__: Tensor) -> None:
        group = optimizer.param_groups[0]
        group["weight_decay"] = 0.0 if group["weight_decay"] else 0.3

    check_steps(train_step, (model, make(model), *rows()), steps=5, programs=3, between=between)


def test_momentum_from_zero_makes_state() -> None:
    model = MLP()

    def between(_: nn.Module, optimizer: Optimizer, *__: Tensor) -> None:
        optimizer.param_groups[0]["momentum"] += 0.3

    check_steps(train_step, (model, SGD(model.parameters(), lr=0.1), *rows()), steps=4, programs=3, between=between)


def test_the_rate_is_exact() -> None:
    """A loss whose gradient has no rounding: then float32 parameters are those of torch.optim, bit by bit."""
    weight = nn.Parameter(torch.randn(37))

    def step(weight: nn.Parameter, optimizer: Optimizer, x: Tensor) -> None:
        (weight * x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    mine, plain = ((p, SGD([p], lr=0.1, momentum=0.9, weight_decay=0.1)) for p in (weight, copy.deepcopy(weight)))
    run = samite.compile(step)
    schedulers = [one_cycle(optimizer) for _, optimizer in (mine, plain)]
    for _ in range(8):
        x = torch.randn(37)
        run(*mine, x)
        step(*plain, x)
        for scheduler in schedulers:
            scheduler.step()
        assert torch.equal(mine[0].detach().clone(), plain[0].detach())


class Own(Optimizer):
    """Does with its numbers what Python allows."""

    scale = 2.0

    def __init__(self, parameters: Any, lr: float = 0.1, power: float = 0.5) -> None:
        super().__init__(parameters, {"lr": lr, "power": power, "decay": 0.1})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            strength = math.sqrt(1 - group["power"]) if group["power"] < 0.9 else f"{group['decay']:.3f}"
            for p in group["params"]:
                p.mul_(1 - group["decay"] ** 2).add_(p.grad * float(strength), alpha=-group["lr"] * self.scale)


def test_numbers_of_other_optimizers_are_constants_of_the_key() -> None:
    model = MLP()

    def between(_: nn.Module, optimizer: Any, *__: Tensor) -> None:
        optimizer.param_groups[0]["power"] += 0.2
        optimizer.param_groups[0]["lr"] *= 0.5

    check_steps(train_step, (model, Own(model.parameters()), *rows()), programs=3, between=between)
    check_steps(
        train_step, (model, torch.optim.RMSprop(model.parameters(), momentum=0.5, eps=1e-3), *rows()), programs=3,
        between=vary(momentum=0.5),
    )  # fmt: skip


def test_attributes_of_an_optimizer_are_part_of_the_key() -> None:
    model = MLP()

    def between(_: nn.Module, optimizer: Any, *__: Tensor) -> None:
        optimizer.scale *= 0.5

    check_steps(train_step, (model, Own(model.parameters()), *rows()), programs=3, between=between)


class Reading(SGD):
    """Computes with an entry, and hands the rest on."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(math.sqrt(group["momentum"]))
        return super().step(closure)


def test_what_a_subclass_reads_is_part_of_the_key_and_nothing_else() -> None:
    model = MLP()
    args = (model, Reading(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1), *rows())
    check_steps(train_step, args, steps=4, programs=2, between=vary(weight_decay=0.5))
    replay = check_steps(train_step, args, steps=4, programs=4, between=vary(momentum=0.5))
    assert replay.read == {("optimizer", 0, "momentum")}


def test_what_the_step_itself_reads_is_part_of_the_key() -> None:
    def step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        group = optimizer.param_groups[0]
        loss = model(x, y) * (1 - group["betas"][0]) + group.get("initial_lr", 0.25) + ("initial_lr" in group)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss * group["lr"]

    model = MLP()
    args = (model, AdamW(model.parameters(), eps=1e-3), *rows())

    def schedule(_: nn.Module, optimizer: Optimizer, *__: Tensor) -> None:
        optimizer.param_groups[0].setdefault("initial_lr", 0.5)
        optimizer.param_groups[0]["lr"] *= 0.5

    check_steps(step, args, steps=4, programs=2, between=schedule)
    check_steps(step, args, steps=4, programs=2, between=vary(weight_decay=0.5, eps=2.0))
    check_steps(step, args, steps=4, programs=4, between=vary(betas=0.9))


def test_a_compiled_function_keys_what_was_read() -> None:
    model = MLP()
    plain = copy.deepcopy(model)
    optimizer, other = (Reading(m.parameters(), lr=0.1, momentum=0.9) for m in (model, plain))
    run = samite.compile(train_step)
    for momentum, programs in ((0.9, 1), (0.9, 2), (0.9, 2), (0.5, 3), (0.5, 3), (0.9, 3)):
        optimizer.param_groups[0]["momentum"] = other.param_groups[0]["momentum"] = momentum
        assert_close(run(model, optimizer, *rows()).clone(), train_step(plain, other, *rows()), 1e-5)
        assert len(run.compilations) == programs
    assert_same_state((model, optimizer), (plain, other), 1e-5)


@pytest.mark.parametrize("make", [lambda p: SGD(p, lr=0.1, momentum=0.9), AdamW], ids=["sgd", "adamw"])
def test_repeats_are_recognised_while_schedulers_step(make: Callable[[Any], Optimizer]) -> None:
    model = MLP()
    optimizer = make(model.parameters())
    scheduler, trees = one_cycle(optimizer), Trees(train_step)
    optimizer._opt_called = True  # as after a step
    tree, key = trees.of((model, optimizer, *rows()), {})
    numbers = tree.leaf("optimizer.param_groups.0.numbers")
    for _ in range(3):
        before = numbers.get()
        scheduler.step()
        assert trees.of((model, optimizer, *rows()), {})[1] is key, "the tree was built again"
        assert not torch.equal(numbers.get(), before)


def test_repeats_look_at_what_was_read() -> None:
    model = MLP()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    trees, args = Trees(train_step), (model, optimizer, *rows())
    tree, before = trees.of(args, {})
    read = trees.key_after(tree, {("optimizer", 0, "momentum")})
    assert read != before
    assert trees.of(args, {})[1] is read
    optimizer.param_groups[0]["weight_decay"] = 0.0
    assert trees.of(args, {})[1] is read, "an equal number is no change"
    optimizer.param_groups[0]["momentum"] = 0.5
    assert trees.of(args, {})[1] not in (read, before)
    optimizer.param_groups[0]["momentum"] = 0.9
    assert trees.of(args, {})[1] == read
    optimizer.param_groups.clear()
    assert trees.of(args, {})[1] not in (read, before)


@pytest.mark.parametrize("make", [
    lambda m: SGD(m.parameters(), lr=torch.tensor(0.1), momentum=torch.tensor(0.9), weight_decay=torch.tensor(0.1)),
    lambda m: AdamW(m.parameters(), lr=torch.tensor(0.01), betas=(torch.tensor(0.9), torch.tensor(0.99)), eps=1e-3),
], ids=["sgd", "adamw"])  # fmt: skip
def test_tensors_as_hyper_parameters(make: Making) -> None:
    """Changed in place, as a scheduler changes a learning rate that is one."""
    model = MLP()

    def between(_: nn.Module, optimizer: Optimizer, *__: Tensor) -> None:
        group = optimizer.param_groups[0]
        for value in (group["lr"], group["weight_decay"], *group.get("betas", ())):
            if isinstance(value, Tensor):
                value.mul_(0.9)

    check_steps(train_step, (model, make(model), *rows()), steps=4, programs=2, between=between)


class Functional(Optimizer):
    """Calls torch.optim's function with numbers of its own."""

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            params, grads = group["params"], [p.grad for p in group["params"]]
            buffers = [self.state[p].setdefault("buffer", torch.zeros_like(p)) for p in params]
            sgd(
                params, grads, buffers, weight_decay=0.1, momentum=0.9, lr=group["lr"], dampening=group["damping"],
                nesterov=False, maximize=False,
            )  # fmt: skip


def test_what_the_ops_do_not_do_is_compiled_in() -> None:
    """Complex parameters go torch.optim's own way, in Python's numbers."""

    def step(weight: nn.Parameter, optimizer: Optimizer, x: Tensor) -> None:
        (weight * x).abs().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    weight, x = nn.Parameter(torch.randn(5, dtype=torch.complex64)), torch.randn(5, dtype=torch.complex64)
    for optimizer, change, read in (
        (
            SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.1),
            {"momentum": 0.5},
            {"momentum", "dampening", "weight_decay"},
        ),
        (AdamW([weight], eps=1e-3), {"betas": 0.9, "lr": 0.5}, {"betas", "eps", "weight_decay"}),
    ):
        replay = check_steps(step, (weight, optimizer, x), programs=3, between=vary(**change))
        assert replay.read == {("optimizer", 0, key) for key in read}


def test_numbers_from_elsewhere_are_packed() -> None:
    model = MLP()
    args = (model, Functional(model.parameters(), {"lr": 0.1, "damping": 0.5}), *rows())
    replay = check_steps(train_step, args, programs=2, between=vary(lr=0.5))
    captured = list(replay.captures.values())[-1]
    names = [str(n.target) for n in captured.graph.graph.nodes if n.op == "call_function"]
    assert names.count("samite.sgd_momentum.default") == 6
    assert names.count("aten.stack.default") == 1
    check_steps(train_step, args, programs=3, between=vary(damping=0.5))


def test_groups_kept_outside_are_not_frozen_in() -> None:
    model = MLP()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    group = optimizer.param_groups[0]
    before = dict(group)

    def rated(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Any:
        return train_step(model, optimizer, x, y) * group["lr"], group["nesterov"]

    def frozen(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        return train_step(model, optimizer, x, y) * group["momentum"]  # here

    captured = capture(rated, (model, optimizer, *rows()))
    rate = captured.graph.graph.find_nodes(op="placeholder")[6]
    assert captured.arguments[6].name == "optimizer.param_groups.0.lr"
    assert len(rate.users) == 1
    for use in (frozen, lambda *args: f"{group['momentum']}", lambda *args: math.sqrt(group["weight_decay"])):
        with pytest.raises((CaptureError, TypeError), match=r"was not taken from the optimizer|Number"):
            capture(use, (model, optimizer, *rows()))
    assert group == before
    assert optimizer.param_groups[0] is group


def group_under_capture() -> tuple[Group, list[str]]:
    noted: list[str] = []
    entries = {"params": [], "lr": torch.tensor(0.1), "momentum": 0.9, "dampening": 0, "weight_decay": 0, "own": 1}
    names = ("lr", "momentum", "dampening", "weight_decay")
    return Group(entries, "optimizer.param_groups[0]", torch.zeros(4), names, noted.append), noted


@pytest.mark.parametrize("read, noted", [
    (lambda g: (g["own"], g["params"], g["lr"], len(g), "momentum" in g, g.get("other")), set()),
    (lambda g: g.get("momentum"), {"momentum"}),
    (lambda g: g.get("initial_lr"), {"initial_lr"}),
    (lambda g: "initial_lr" in g, {"initial_lr"}),
    (lambda g: {**g}["momentum"], {"momentum", "dampening", "weight_decay"}),
    (lambda g: dict(g.items()), {"momentum", "dampening", "weight_decay"}),
    (lambda g: list(g.values()), {"momentum", "dampening", "weight_decay"}),
    (lambda g: g.copy(), {"momentum", "dampening", "weight_decay"}),
])  # fmt: skip
def test_groups_note_what_is_read(read: Callable[[Group], Any], noted: set[str]) -> None:
    group, found = group_under_capture()
    read(group)
    assert set(found) >= noted
    assert bool(found) == bool(noted)


def test_groups_refuse_changes() -> None:
    group, _ = group_under_capture()
    group["momentum"] = 0.9
    with pytest.raises(CaptureError, match='"momentum" of optimizer'):
        group["momentum"] = 0.8
    with pytest.raises(CaptureError, match='"own" is removed'):
        del group["own"]
