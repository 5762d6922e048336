"""Stochastic gradient descent as one op a parameter: the bits of torch.optim."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captures import train_step
from models import MLP
from samite.frontend import capture
from samite.ir.sgd import (
    sgd,
    sgd_into,
    sgd_momentum,
    sgd_momentum_into,
    sgd_momentum_reference,
    sgd_reference,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.7, "nesterov": True, "weight_decay": 0.1},
    "all": {"momentum": 0.7, "nesterov": True, "maximize": True},
}


def numbers(group: dict[str, Any]) -> Tensor:
    return torch.tensor([group[k] for k in ("lr", "momentum", "dampening", "weight_decay")], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 5), ()])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_is_the_update_of_torch(options: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.randn(shape, dtype=dtype))
    optimizer = torch.optim.SGD([parameter], lr=0.05, **options)
    group = optimizer.param_groups[0]
    decays, nesterov, maximize = group["weight_decay"] != 0, group["nesterov"], group["maximize"]
    mine, buffer = parameter.detach().clone(), None
    for step in range(3):
        group["lr"], group["momentum"] = 0.05 / (step + 1), group["momentum"] * 0.9
        parameter.grad = torch.randn(shape, dtype=dtype)
        optimizer.step()
        if group["momentum"]:
            operands = (mine, parameter.grad, buffer, numbers(group), decays, nesterov, maximize)
            (mine, buffer), reference = sgd_momentum(*operands), sgd_momentum_reference(*operands)
            assert torch.equal(buffer, optimizer.state[parameter]["momentum_buffer"])
        else:
            operands = (mine, parameter.grad, numbers(group), decays, maximize)
            mine, reference = sgd(*operands), (sgd_reference(*operands),)
        assert torch.equal(mine, parameter.detach())
        tolerance = {"rtol": 0.02, "atol": 1e-2} if dtype == torch.bfloat16 else {}
        for value, wanted in zip(reference, (mine, buffer), strict=False):
            torch.testing.assert_close(value, wanted, **tolerance)


@pytest.mark.parametrize("options", [{"weight_decay": 0.1, "maximize": True}, {"nesterov": True}])
def test_into_writes_there_and_leaves_the_operands(options: dict[str, bool]) -> None:
    operands = [torch.rand(4, 3) for _ in range(3)]
    before = copy.deepcopy(operands)
    given = numbers({"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1})
    decays, nesterov, maximize = (name in options for name in ("weight_decay", "nesterov", "maximize"))
    into = tuple(torch.empty(4, 3) for _ in range(2))
    written = sgd_momentum_into(into, *operands, given, decays, nesterov, maximize)
    assert [x is y for x, y in zip(written, into, strict=True)] == [True, True]
    assert all(map(torch.equal, into, sgd_momentum(*operands, given, decays, nesterov, maximize)))
    assert sgd_into(into[:1], *operands[:2], given, decays, maximize) is into[0]
    assert torch.equal(into[0], sgd(*operands[:2], given, decays, maximize))
    torch.testing.assert_close(operands, before)


def ops(model: nn.Module, **options: Any) -> list[str]:
    model, optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1, **options)
    data = torch.randn(5, 16, dtype=next(model.parameters()).dtype), torch.zeros(5, dtype=torch.int64)
    graph = capture(train_step, (model, optimizer, *data)).graph
    return [
        str(n.target) for n in graph.graph.nodes if n.op == "call_function" and n.meta["custom"]["phase"] == "update"
    ]


def test_a_capture_has_nothing_but_one_update_a_parameter() -> None:
    assert ops(MLP()) == ["samite.sgd.default"] * 6
    momentum = [name for name in ops(MLP().bfloat16(), momentum=0.9) if "getitem" not in name]
    assert momentum == ["samite.sgd_momentum.default"] * 6
