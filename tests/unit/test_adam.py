"""Adam and AdamW as one op a parameter: equal to torch.optim, alone, captured and sharded."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import samite
from samite import Shard
from samite.frontend import capture
from samite.ir.adam import adam, adam_into, adam_reference

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "weight_decay": 0.01},
    "betas": {"betas": (0.5, 0.7), "eps": 1e-3},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_it_is_the_update_of_torch(kind: type, options: dict[str, Any], dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.randn(7, 5, dtype=dtype))
    optimizer = kind([parameter], lr=0.05, **options)
    group = optimizer.param_groups[0]
    constants = (*group["betas"], group["eps"], group["weight_decay"], kind is torch.optim.AdamW, group["maximize"])
    state = [torch.zeros(7, 5, dtype=dtype) for _ in range(2)]
    mine = parameter.detach().clone()
    for step in range(1, 4):
        parameter.grad = torch.randn(7, 5, dtype=dtype)
        operands = (
            mine,
            parameter.grad,
            *state,
            torch.tensor(float(step)),
            torch.tensor(0.05, dtype=dtype),
            *constants,
        )
        updated = adam(*operands)
        reference = adam_reference(*operands)
        optimizer.step()
        mine, state = updated[0], list(updated[1:])
        torch.testing.assert_close(mine, parameter.detach())
        for one, other in zip(updated, reference, strict=True):
            torch.testing.assert_close(one, other)


def test_into_writes_there_and_leaves_the_operands() -> None:
    operands = [torch.rand(4, 3) for _ in range(4)]
    before = copy.deepcopy(operands)
    scalars = (torch.tensor(2.0), torch.tensor(0.1), 0.9, 0.99, 1e-8, 0.1, True, False)
    into = tuple(torch.empty(4, 3) for _ in range(3))
    assert adam_into(into, *operands, *scalars) is into
    torch.testing.assert_close(into, adam(*operands, *scalars))
    torch.testing.assert_close(operands, before)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def ops(optimizer: type, **options: Any) -> list[str]:
    model = nn.Linear(4, 3)
    graph = capture(step, (model, optimizer(model.parameters(), **options), torch.randn(5, 4))).graph
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def test_a_capture_has_one_update_a_parameter() -> None:
    assert ops(torch.optim.AdamW).count("samite.adam.default") == 2
    assert ops(torch.optim.Adam, weight_decay=0.1).count("samite.adam.default") == 2


def test_what_the_op_does_not_do_stays_separate() -> None:
    assert "samite.adam.default" not in ops(torch.optim.AdamW, amsgrad=True)


@pytest.mark.parametrize("engine", ["lockstep", "inprocess"])
def test_sharded_steps_follow_one_device(engine: str) -> None:
    model = nn.Linear(4, 7)
    plain = copy.deepcopy(model)
    optimizer, other = (torch.optim.AdamW(m.parameters(), lr=0.1) for m in (model, plain))
    mesh = samite.mesh("cpu", engine=engine, dp=3 if engine == "lockstep" else 1)
    run = samite.compile(step, mesh=mesh, placements={"x": {"dp": Shard(0)}, "model.weight": {"dp": Shard(0)}})
    for _ in range(4):
        x = torch.randn(5, 4)
        torch.testing.assert_close(run(model, optimizer, x).detach().clone(), step(plain, other, x).detach())
    torch.testing.assert_close(model.weight.detach().clone(), plain.weight.detach())
