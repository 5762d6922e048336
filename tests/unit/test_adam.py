"""Adam, AdamW and AMSGrad as one op a parameter: equal to torch.optim, alone, captured and sharded."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samite
from samite import Shard
from samite.frontend import capture
from samite.ir.adam import adam, adam_into, adam_reference, amsgrad

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True, "weight_decay": 0.01},
    "betas": {"betas": (0.5, 0.7), "eps": 1e-3},
    "amsgrad": {"amsgrad": True, "betas": (0.5, 0.7), "weight_decay": 0.1},
}


def numbers(group: dict[str, Any]) -> Tensor:
    return torch.tensor([group["lr"], *group["betas"], group["eps"], group["weight_decay"]], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    "kind, shape", [(torch.optim.Adam, (7, 5)), (torch.optim.AdamW, (7, 5)), (torch.optim.AdamW, ())]
)
def test_it_is_the_update_of_torch(
    kind: type, shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype
) -> None:
    parameter = nn.Parameter(torch.randn(shape, dtype=dtype))
    optimizer = kind([parameter], lr=0.05, **options)
    group = optimizer.param_groups[0]
    flags = (group["weight_decay"] != 0, kind is torch.optim.AdamW, group["maximize"])
    update, moments = (amsgrad, 3) if group["amsgrad"] else (adam, 2)
    mine, state = parameter.detach().clone(), [torch.zeros(shape, dtype=dtype) for _ in range(moments)]
    for step in range(1, 4):
        group["lr"], group["betas"] = 0.05 / step, (group["betas"][0] * 0.9, group["betas"][1])
        parameter.grad = torch.randn(shape, dtype=dtype)
        operands = (mine, parameter.grad, *state, torch.tensor(float(step)), numbers(group), *flags)
        updated, reference = update(*operands), adam_reference(*operands)
        optimizer.step()
        mine, state = updated[0], list(updated[1:])
        theirs = [parameter.detach(), *list(optimizer.state[parameter].values())[1:]]
        for value, defined, wanted in zip(updated, reference, theirs, strict=True):
            exact = {"rtol": 0.0, "atol": 0.0} if dtype == torch.bfloat16 else {}
            torch.testing.assert_close(value, wanted, **exact)
            torch.testing.assert_close(defined, wanted, **({"rtol": 0.02, "atol": 1e-3} if exact else {}))


def test_weight_decay_that_is_not_looked_at() -> None:
    state, count = [torch.rand(4) for _ in range(4)], torch.tensor(1.0)
    operands = [[*state, count, torch.tensor([0.1, 0.9, 0.99, 1e-8, decay]).double()] for decay in (0.0, 0.5)]
    for update in (adam, adam_reference):
        torch.testing.assert_close(*(update(*given, False, True, False) for given in operands))


def test_into_writes_there_and_leaves_the_operands() -> None:
    operands = [torch.rand(4, 3) for _ in range(4)]
    before = copy.deepcopy(operands)
    group = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    scalars = (torch.tensor(2.0), numbers(group), True, True, False)
    into = tuple(torch.empty(4, 3) for _ in range(3))
    assert adam_into(into, *operands, *scalars) is into
    torch.testing.assert_close(into, adam(*operands, *scalars))
    torch.testing.assert_close(operands, before)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).abs().square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def ops(optimizer: type, dtype: torch.dtype = torch.float32, **options: Any) -> list[str]:
    model = nn.Linear(4, 3, dtype=dtype)
    graph = capture(step, (model, optimizer(model.parameters(), **options), torch.randn(5, 4, dtype=dtype))).graph
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def test_a_capture_has_one_update_a_parameter() -> None:
    assert ops(torch.optim.AdamW).count("samite.adam.default") == 2
    assert ops(torch.optim.AdamW, dtype=torch.bfloat16).count("samite.adam.default") == 2
    assert ops(torch.optim.Adam, weight_decay=0.1).count("samite.adam.default") == 2
    assert ops(torch.optim.AdamW, amsgrad=True).count("samite.amsgrad.default") == 2


def test_what_the_op_does_not_do_stays_separate() -> None:
    assert "samite.adam.default" not in ops(torch.optim.AdamW, dtype=torch.complex64)


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
