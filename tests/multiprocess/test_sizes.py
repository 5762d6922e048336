"""Inputs of many sizes on worker processes: the numbers of one device, from one capture with symbols."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import samite
from samite import Shard
from samite.runtime.session import session_of


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def test_steps_on_batches_of_many_sizes() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    plain = copy.deepcopy(model)
    optimizer, plain_optimizer = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, plain))
    mesh = samite.mesh("cpu", engine="local", dp=2)
    batch = {"dp": Shard(0)}
    compiled = samite.compile(step, mesh=mesh, placements={"x": batch, "y": batch, "model.0.weight": batch})
    try:
        for size in (8, 8, 7, 1, 5, 8, 3, 7, 16):  # one row leaves a rank with none; 16 is more than there was before
            x, y = torch.randn(size, 4), torch.randn(size, 3)
            loss, expected = compiled(model, optimizer, x, y), step(plain, plain_optimizer, x, y)
            torch.testing.assert_close(loss.clone(), expected.detach())
        for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.detach().clone(), theirs.detach())
    finally:
        session_of(mesh).close()
    assert [made.origin for made in compiled.compilations] == [
        "capture",  # the first step, which makes the optimizer's state
        "capture",
        "symbolic capture",
        "capture",  # one row
        *["instance"] * 3,
    ]
