"""Models with distributed parameters, in plain PyTorch: forward, backward, clipping, optimizers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samite
from models import GPT, batch
from rank_threads import mesh_of, on_ranks, whole
from samite import Shard
from samite.mesh import Mesh

Placements = dict[str, dict[str, Any]]


def distributed(model: nn.Module, mesh: Mesh, placements: Placements) -> nn.Module:
    return samite.distribute_module(copy.deepcopy(model), mesh, placements)


def trained(
    model: nn.Module,
    make: Callable[[Any], torch.optim.Optimizer],
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    clip: float | None = None,
    steps: int = 2,
) -> list[torch.Tensor]:
    """The losses, the norms of gradients and the parameters after some steps."""
    optimizer = make(model.parameters())
    seen: list[torch.Tensor] = []
    for _ in range(steps):
        inputs, targets = batch()
        logits = model(inputs)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
        loss.backward()
        if clip is not None:
            seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05, norm_type=clip))
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss)
    return [whole(x.detach()) for x in (*seen, *model.parameters())]


def compare(model: nn.Module, mesh: Mesh, placements: Placements, batch: Any, place: Any, **options: Any) -> None:
    expected = trained(copy.deepcopy(model), batch=lambda: batch, **options)

    def act() -> None:
        given = tuple(samite.tensor(x, mesh, place) for x in batch)
        found = trained(distributed(model, mesh, placements), batch=lambda: given, **options)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    on_ranks(mesh, act)


MLP = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.0), nn.Linear(16, 5))
BATCH = torch.randn(8, 6), torch.randint(5, (8,))
MEGATRON: Placements = {"0.*": {"tp": Shard(0)}, "4.weight": {"tp": Shard(1)}}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw, one by one": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "adam, amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, foreach=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "sgd, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, maximize=True, fused=True),
    "adam, fused": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), weight_decay=0.1, fused=True),
    "adagrad, fused": lambda p: torch.optim.Adagrad(p, lr=0.01, lr_decay=0.1, weight_decay=0.1, fused=True),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_runs_unchanged(optimizer: str) -> None:
    mesh = mesh_of(dp=2, tp=2)
    compare(MLP, mesh, MEGATRON, BATCH, {"dp": Shard(0)}, make=OPTIMIZERS[optimizer], steps=3)


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_gradients_are_clipped(norm: float) -> None:
    mesh = mesh_of(dp=2, tp=2)
    compare(MLP, mesh, MEGATRON, BATCH, {"dp": Shard(0)}, make=OPTIMIZERS["sgd"], clip=norm)


def test_a_gpt() -> None:
    model = GPT(vocab=11, block=8, dim=8, heads=2, layers=1, tie=True)
    data = batch(11, 4, 8)
    placements: Placements = {"*.up.weight": {"tp": Shard(0)}, "*.down.weight": {"tp": Shard(1)}}
    compare(model, mesh_of(dp=2, tp=2), placements, data, {"dp": Shard(0)}, make=OPTIMIZERS["sgd"])


def test_gradients_accumulate_without_communication() -> None:
    from rank_threads import asked_for

    mesh, x, linear = mesh_of(dp=2), torch.randn(8, 6), nn.Linear(6, 3)

    def act() -> None:
        model = distributed(linear, mesh, {})
        for part in x.chunk(2):
            (samite.tensor(part, mesh, {"dp": Shard(0)}) @ model.weight.t()).square().sum().backward()
        assert asked_for() == []
        torch.testing.assert_close(whole(model.weight.grad), 2 * (whole(model.weight) @ x.t()) @ x)

    on_ranks(mesh, act)


def test_state_goes_to_checkpoints_and_back() -> None:
    mesh = mesh_of(tp=2)

    def act() -> None:
        model = distributed(MLP, mesh, MEGATRON)
        saved = {name: whole(value) for name, value in model.state_dict().items()}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        model.load_state_dict(saved)
        assert model[0].weight.placements == {"tp": Shard(0)}
        for name, value in model.state_dict().items():
            torch.testing.assert_close(whole(value), MLP.state_dict()[name])

    on_ranks(mesh, act)


def test_dropout_is_the_same_on_every_mesh() -> None:
    def dropped(mesh: Mesh, place: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        def act() -> tuple[torch.Tensor, torch.Tensor]:
            x = samite.ones((6, 10), mesh, place, requires_grad=True)
            y = F.dropout(x, 0.5)
            y.sum().backward()
            return whole(y), whole(x.grad)

        torch.manual_seed(7)
        return on_ranks(mesh, act)[0]

    one = dropped(mesh_of(d=1), {})
    assert set(one[0].unique().tolist()) == {0.0, 2.0}
    assert one[0].equal(one[1])
    assert all(a.equal(b) for a, b in zip(one, dropped(mesh_of(d=1, e=1), {"d": Shard(1)}), strict=True))


def test_attention() -> None:
    mesh = mesh_of(tp=2)
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))

    def act() -> None:
        heads = [samite.tensor(x, mesh, {"tp": Shard(1)}, requires_grad=True) for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*heads, is_causal=True)
        assert out.placements == {"tp": Shard(1)}
        torch.testing.assert_close(whole(out), F.scaled_dot_product_attention(q, k, v, is_causal=True))
        out.sum().backward()

    on_ranks(mesh, act)
