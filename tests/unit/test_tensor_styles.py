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
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
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


TOKENS = torch.randint(11, (2, 6))
PLANS: dict[str, dict[str, Any]] = {
    "megatron": {"up": ColwiseParallel(), "down": RowwiseParallel()},
    "embedding": {"table": RowwiseParallel(input_layouts=TorchReplicate()), "up": {"tp": ColwiseParallel()}},
    "sequence": {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=TorchShard(1)),
        "down": RowwiseParallel(output_layouts=TorchShard(1)),
    },
    "outputs that stay split": {
        "up": ColwiseParallel(output_layouts=TorchReplicate()),
        "down": ColwiseParallel(output_layouts=TorchShard(-1)),
        "table": ColwiseParallel(output_layouts=TorchShard(1)),
    },
    "prepared": {
        "norm": PrepareModuleInputOutput(
            input_layouts=(TorchReplicate(),),
            desired_input_layouts=(TorchShard(0),),
            output_layouts=(TorchShard(0),),
            desired_output_layouts=(TorchShard(1),),
        ),
        "up": PrepareModuleInput(input_layouts=(TorchShard(1),), desired_input_layouts=(TorchReplicate(),)),
        "down": {"tp": PrepareModuleOutput(output_layouts=TorchReplicate(), desired_output_layouts=TorchShard(2))},
    },
    "mixed": {"up": ColwiseParallel(), "up.bias": {"tp": Shard(0)}, "down.weight": {"tp": Shard(1)}},
}


@pytest.mark.parametrize("ranks", [2, 3])  # by three all shards are uneven
@pytest.mark.parametrize("plan", PLANS)
def test_a_style_is_placements_and_redistributions(plan: str, ranks: int) -> None:
    mesh, model = mesh_of(tp=ranks), Block()
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


def test_pairs_of_linears_meet_once() -> None:
    """The pattern that `PairwiseParallel` stood for: columns, then rows, and one reduction for the two."""
    mesh, x = mesh_of(tp=2), torch.randn(3, 8)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 8), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "3": ColwiseParallel(), "5": RowwiseParallel()}

    def act() -> list[str]:
        mine = samite.distribute_module(copy.deepcopy(model), mesh, plan)
        out = mine(samite.tensor(x, mesh))
        asked = list(asked_for())
        torch.testing.assert_close(whole(out), model(x).detach())
        return asked

    assert on_ranks(mesh, act)[0] == ["all_reduce", "all_reduce"]


def test_styles_over_one_axis_of_several() -> None:
    mesh, model, tokens = mesh_of(dp=2, tp=2), Block(), torch.randint(11, (3, 6))
    expected = model(tokens).detach()
    plan: dict[str, Any] = {
        "up": {"tp": ColwiseParallel(input_layouts=TorchShard(1))},
        "up.weight": {"dp": Shard(1)},  # fully sharded over the other axis
        "down": {"tp": RowwiseParallel(output_layouts=TorchShard(1))},
        "norm": {"tp": SequenceParallel()},
    }

    def act() -> None:
        mine = samite.distribute_module(copy.deepcopy(model), mesh, plan)
        assert mine.up.weight.placements == {"dp": Shard(1), "tp": Shard(0)}
        out = mine.down(mine.up(mine.norm(mine.table(samite.tensor(tokens, mesh, {"dp": Shard(0)})))).relu())
        assert out.placements == {"dp": Shard(0), "tp": Shard(1)}
        torch.testing.assert_close(whole(mine(samite.tensor(tokens, mesh, {"dp": Shard(0)}))), expected)

    on_ranks(mesh, act)


class Picks(nn.Module):
    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> dict[str, torch.Tensor] | tuple[torch.Tensor, ...]:
        return x * mask, mask


def test_named_inputs_and_several_outputs() -> None:
    mesh, x, mask = mesh_of(tp=2), torch.randn(4, 6), torch.ones(6)
    style = PrepareModuleInputOutput(
        input_layouts=(TorchReplicate(),),
        desired_input_layouts=(None,),
        input_kwarg_layouts={"mask": TorchReplicate()},
        desired_input_kwarg_layouts={"mask": TorchShard(0)},
        output_layouts=(TorchShard(1), TorchShard(0)),
        desired_output_layouts=(TorchShard(0), None),
    )

    def act() -> None:
        picks = samite.distribute_module(Picks(), mesh, style)
        out, given = picks(samite.tensor(x, mesh), mask=samite.tensor(mask, mesh))
        assert given.placements == out.placements == {"tp": Shard(0)}
        torch.testing.assert_close(whole(out), x * mask)

    on_ranks(mesh, act)


def test_a_table_split_by_rows_is_looked_up_with_whole_indices() -> None:
    mesh = mesh_of(tp=2)

    def act() -> list[str]:
        table = samite.distribute_module(nn.Embedding(11, 8), mesh, RowwiseParallel(input_layouts=TorchReplicate()))
        table(samite.tensor(TOKENS, mesh))
        return list(asked_for())

    assert on_ranks(mesh, act)[0] == ["all_reduce"]


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


class Own(ParallelStyle):
    """torch calls `_apply` of one."""

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        return module


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"upp": ColwiseParallel()}, '"upp" names no module'),
        ({"norm": ColwiseParallel()}, 'ColwiseParallel of "norm", which is a LayerNorm'),
        ({"up": Own()}, "Own is not a style that samite knows"),
    ],
)
def test_styles_that_do_not_fit(plan: dict[str, Any], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        samite.distribute_module(Block(), samite.mesh("cpu", engine="inprocess", tp=1), plan)


def test_an_axis_that_is_not_said() -> None:
    mesh = samite.mesh("cpu", engine="inprocess", dp=1, tp=1)
    with pytest.raises(PlacementError, match="with the axes dp, tp"):
        samite.distribute_module(Block(), mesh, {"up": ColwiseParallel()})
