"""Python state that a captured function changes: refused with its line, or taken along, and as it was before."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captures import Replay, train_step
from models import MLP
from refusals import at, refused
from samite.frontend import capture

X = torch.randn(6, 16)
Y = torch.zeros(6, dtype=torch.int64)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.calls, self.history, self.sizes, self.last = 0, [1], {"a": 1}, None
        self.register_buffer("table", torch.ones(16))

    def forward(self, x: Tensor, change: str) -> Tensor:
        y = self.linear(x)
        match change:
            case "number":
                self.calls += 1  # number
            case "list":
                self.history.append(y)
            case "dict":
                self.sizes["b"] = 2
            case "tensor":
                self.last = y  # tensor
            case "mode":
                self.eval()
            case "new":
                self.fresh = y  # new
            case "parameter":
                self.linear.weight = nn.Parameter(y.detach())
        return y


@pytest.mark.parametrize("change, name", [
    ("number", "calls"), ("list", "history"), ("dict", "self.sizes['b']"), ("tensor", "last"), ("mode", "training"),
    ("new", "fresh"), ("parameter", "linear.weight"),
])  # fmt: skip
def test_python_state_that_changes(change: str, name: str) -> None:
    model = Counting()
    error = refused(model, X, change)
    assert f'"{name}"' in error.what or f"parameter {name} is replaced" in error.what
    if change in ("number", "tensor", "new"):
        assert error.where == at(Counting.forward, f"# {change}")
    assert (model.calls, model.history, model.sizes, model.last, model.training) == (0, [1], {"a": 1}, None, True)
    assert not hasattr(model, "fresh")
    capture(model, (X, "nothing"))


def test_buffers_may_be_set() -> None:
    class Decay(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(16))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return x - self.mean

    eager, mine = Decay(), Decay()
    replay = Replay(mine)
    for _ in range(3):
        torch.testing.assert_close(replay(X), eager(X))
    torch.testing.assert_close(mine.mean, eager.mean)


def test_containers_that_the_function_changes() -> None:
    losses: list[Tensor] = []

    def appends(x: Tensor) -> Tensor:
        losses.append(x.sum())
        return x

    assert '"losses" is changed' in refused(appends, X).what
    assert losses == []

    def grows(batch: dict[str, Tensor]) -> Tensor:
        batch["y"] = batch["x"] + 1
        return batch["y"]

    def swaps(batch: list[Tensor]) -> Tensor:
        batch[0] = batch[0] + 1
        return batch[0]

    assert "changes a list or dictionary" in refused(grows, {"x": X}).what
    assert "changes a list or dictionary" in refused(swaps, [X]).what


LOG = logging.getLogger("samite.test")


def test_loggers_may_log() -> None:
    def logs(x: Tensor) -> Tensor:
        LOG.debug("shape %s", x.shape)
        return x + 1

    LOG.setLevel(logging.DEBUG)
    capture(logs, (X,))


def test_optimizer_state_in_python_numbers() -> None:
    class Counter(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["step"] = self.state[p].get("step", 0) + 1

    model = MLP()
    error = refused(train_step, model, Counter(model.parameters(), lr=0.1), X, Y)
    assert "optimizer.layers.0.weight.step is a Python value" in error.what


def test_data_is_not_assigned_in_another_shape() -> None:
    def prunes(model: nn.Module) -> None:
        model.head.weight.data = model.head.weight.data[:2]  # here

    assert refused(prunes, MLP()).where == at(prunes, "# here")

    def halves(model: nn.Module) -> None:
        model.head.weight.data = model.head.weight.data * 0.5
        model.head.bias.data.mul_(0.5)

    model = MLP()
    weight, bias = model.head.weight.detach().clone(), model.head.bias.detach().clone()
    Replay(halves)(model)
    torch.testing.assert_close(model.head.weight.detach(), weight * 0.5)
    torch.testing.assert_close(model.head.bias.detach(), bias * 0.5)
