"""`samite.constrain`: a layout that the user asks for inside of a function."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import samite
from samite import Partial, Replicate, Shard
from samite.errors import PlacementError

MESH = samite.mesh("cpu", engine="lockstep", dp=2, tp=2)
PLACEMENTS = {"x": {"dp": Shard(0)}, "model.0.weight": {"tp": Shard(0)}}


def make() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8)), torch.randn(4, 6, 8)


def step(model: nn.Sequential, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequence parallel: what is outside of the split layers is split over time."""
    y = samite.constrain(model[:3](x), {"dp": Shard(0), "tp": Shard(1)})
    y = model[3](y)
    loss = y.square().mean() + y[0].sum()
    loss.backward()
    return loss, y


def verbs(fn: Any, *args: Any) -> list[str]:
    _, built = samite.compile(fn, mesh=MESH, placements=PLACEMENTS).lower(*args, keep_text=("verify",))
    text = built.records[-1].text
    return [line.split('"dist.')[1].split('"')[0] for line in text.splitlines() if '"dist.' in line]


def test_values_and_gradients_are_those_of_one_device() -> None:
    model, x = make()
    plain = copy.deepcopy(model)
    expected = step(plain, x)
    for mine, theirs in zip(samite.compile(step, mesh=MESH, placements=PLACEMENTS)(model, x), expected, strict=True):
        torch.testing.assert_close(mine.clone(), theirs.detach())
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.clone(), theirs.grad)


def test_a_constraint_makes_tensor_parallel_sequence_parallel() -> None:
    model, x = make()

    def without(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x)

    def constrained(model: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
        return model[3](samite.constrain(model[:3](x), {"dp": Shard(0), "tp": Shard(1)}))

    assert "all_reduce" in verbs(without, model, x)
    found = verbs(constrained, model, x)
    assert "reduce_scatter" in found
    assert "all_reduce" not in found


def test_the_gradient_is_laid_out_like_the_value() -> None:
    model, x = make()
    _, built = samite.compile(step, mesh=MESH, placements=PLACEMENTS).lower(model, x, keep_text=("constrain",))
    text = next(r.text for r in built.records if r.name == "constrain")
    assert text.count('"dist.constrain"') == 2
    assert text.count('layout = "[4:dp, 6:tp, 8]"') == 2


def test_outside_of_a_compiled_function_it_is_the_value_itself() -> None:
    x = torch.randn(3, requires_grad=True)
    assert samite.constrain(x, {"anything": Shard(0)}) is x


@pytest.mark.parametrize(
    ("placements", "message", "where"),
    [
        ({"pp": Shard(0)}, 'the mesh has no axis "pp"', "test_constrain.py:"),
        ({"tp": Shard(3)}, "no dim 3", "test_constrain.py:"),
        ({"tp": Partial()}, "cannot be asked to be Partial", ""),  # raised where it is called
        ({"tp": "rows"}, "'rows' is not a placement", ""),
    ],
)
def test_what_cannot_be_asked_for(placements: dict[str, Any], message: str, where: str) -> None:
    def ask(x: torch.Tensor) -> torch.Tensor:
        return samite.constrain(x * 2, placements)

    with pytest.raises(PlacementError, match=message) as caught:
        samite.compile(ask, mesh=MESH, placements={"x": {"dp": Replicate()}})(torch.zeros(4, 6, 8))
    assert where in caught.value.where
