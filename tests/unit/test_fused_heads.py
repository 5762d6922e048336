"""Attention whose queries, keys and values come out of one weight, cut in the ways that people write it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

import samite
from samite import Shard
from samite.ir.module import Module
from samite.passes.traffic import collectives

Cut = Callable[[torch.Tensor, int], tuple[torch.Tensor, ...]]


def by_split(qkv: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
    b, t, width = qkv.shape
    return tuple(x.view(b, t, heads, -1).transpose(1, 2) for x in qkv.split(width // 3, dim=2))


def by_chunk(qkv: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
    return tuple(x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in qkv.chunk(3, dim=-1))


def by_view(qkv: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
    b, t, width = qkv.shape
    return tuple(qkv.view(b, t, 3, heads, width // (3 * heads)).permute(2, 0, 3, 1, 4))


class Attention(nn.Module):
    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self.cut, self.qkv, self.proj = cut, nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.cut(self.qkv(x), 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.proj(mixed.transpose(1, 2).reshape(x.shape))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.mark.parametrize("cut", [by_split, by_chunk, by_view])
def test_naming_the_fused_weight_is_enough(cut: Cut) -> None:
    model = nn.Sequential(Attention(cut), Attention(cut))
    plain = copy.deepcopy(model)
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain))
    mesh = samite.mesh("cpu", engine="lockstep", dp=2, tp=2)
    run = samite.compile(step, mesh=mesh, placements={"x": {"dp": Shard(0)}, "model.*.qkv.weight": {"tp": Shard(0)}})
    x = torch.randn(8, 32, 32)
    for _ in range(2):
        torch.testing.assert_close(run(model, optimizer, x).detach().clone(), step(plain, other, x).detach())
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().clone(), theirs.detach())

    _, built = run.lower(model, optimizer, x)
    layouts = {a.name: str(a.layout) for a in built.program.arguments}
    assert layouts["model.1.qkv.weight"] == "[(3 32:tp), 32]"
    assert layouts["model.1.proj.weight"] == "[32, 32:tp]"
    module = Module.parse(built.program.module)
    counts = Counter((c.verb, c.axes) for c in collectives(module.graph, module.mesh))
    # One a layer forward, one backward but for the first layer, whose input needs no gradient; one for all gradients.
    assert counts == {("all_reduce", ("tp",)): 3, ("all_reduce", ("dp",)): 1}
