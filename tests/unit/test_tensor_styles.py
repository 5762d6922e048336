"""torch's parallel styles, as placements of modules: eager and compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate as TorchReplicate
from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

import samite
from rank_threads import asked_for, mesh_of, on_ranks, whole
from samite import Replicate, Shard
from samite.errors import PlacementError
from samite.runtime.session import session_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        return x + self.down(self.up(self.norm(x)).relu())


INPUT: dict[str, Any] = {"input_layouts": TorchShard(0), "desired_input_layouts": TorchReplicate()}
TOKENS = torch.randint(11, (2, 6))
PLANS: dict[str, dict[str, Any]] = {
    "megatron": {"up": ColwiseParallel(), "down": RowwiseParallel()},
    "embedding": {"table": RowwiseParallel(input_layouts=TorchReplicate()), "up": {"tp": ColwiseParallel()}},
    "sequence": {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=TorchShard(1)),
        "down": RowwiseParallel(output_layouts=TorchShard(1)),
    },
    "mixed": {"up": ColwiseParallel(), "up.bias": {"tp": Shard(0)}, "down.weight": {"tp": Shard(1)}},
}


@pytest.mark.parametrize("plan", PLANS)
def test_a_style_is_placements_and_redistributions(plan: str) -> None:
    mesh, model = mesh_of(tp=2), Block()
    expected = model(TOKENS)
    expected.square().sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()

    def act() -> None:
        mine = samite.distribute_module(copy.deepcopy(model), mesh, PLANS[plan])
        out = mine(samite.tensor(TOKENS, mesh))
        torch.testing.assert_close(whole(out), expected.detach())
        out.square().sum().backward()
        torch.testing.assert_close([whole(p.grad) for p in mine.parameters()], gradients, rtol=1e-4, atol=1e-5)

    on_ranks(mesh, act)


def test_where_parameters_lie() -> None:
    mesh = mesh_of(dp=1, tp=2)

    def act() -> None:
        plan = {"up": {"tp": ColwiseParallel()}, "d*n": {"tp": RowwiseParallel()}, "table": {"tp": ColwiseParallel()}}
        model = samite.distribute_module(Block(), mesh, plan)
        assert model.up.weight.placements["tp"] == model.up.bias.placements["tp"] == Shard(0)
        assert model.down.weight.placements["tp"] == Shard(1)
        assert model.down.bias.placements["tp"] == Replicate()
        assert model.table.weight.placements["tp"] == Shard(1)

    on_ranks(mesh, act)


def test_sequence_parallelism_scatters_and_gathers() -> None:
    mesh, model = mesh_of(tp=2), Block()

    def act() -> list[str]:
        mine = samite.distribute_module(copy.deepcopy(model), mesh, PLANS["sequence"])
        mine(samite.tensor(TOKENS, mesh))
        return list(asked_for())

    asked = on_ranks(mesh, act)[0]
    assert {"all_gather", "reduce_scatter"} <= set(asked)
    assert "all_reduce" not in asked


def test_a_style_of_the_module_itself() -> None:
    mesh, linear = mesh_of(tp=2), nn.Linear(8, 4)

    def act() -> None:
        model = samite.distribute_module(copy.deepcopy(linear), mesh, ColwiseParallel())
        assert model.weight.placements == {"tp": Shard(0)}
        torch.testing.assert_close(whole(model(samite.ones((3, 8), mesh))), linear(torch.ones(3, 8)).detach())

    on_ranks(mesh, act)


def test_compile_takes_styles() -> None:
    mesh, model = samite.mesh("cpu", engine="lockstep", tp=2), Block()
    expected = model(TOKENS).detach()

    @samite.compile(mesh=mesh, placements={"model.up": ColwiseParallel(), "model.down": RowwiseParallel()})
    def forward(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens)

    torch.testing.assert_close(whole(forward(model, TOKENS)), expected)
    assert model.up.weight.placements == {"tp": Shard(0)}
    assert model.down.weight.placements == {"tp": Shard(1)}
    session_of(mesh).close()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"upp": ColwiseParallel()}, '"upp" names no module'),
        ({"norm": ColwiseParallel()}, 'ColwiseParallel of "norm", which is a LayerNorm'),
        (
            {"up": PrepareModuleInput(input_layouts=TorchShard(0), desired_input_layouts=TorchReplicate())},
            "not a style",
        ),
    ],
)
def test_styles_that_do_not_fit(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        samite.distribute_module(Block(), samite.mesh("cpu", engine="inprocess", tp=1), plan)


def test_an_axis_that_is_not_said() -> None:
    mesh = samite.mesh("cpu", engine="inprocess", dp=1, tp=1)
    with pytest.raises(PlacementError, match="with the axes dp, tp"):
        samite.distribute_module(Block(), mesh, {"up": ColwiseParallel()})
