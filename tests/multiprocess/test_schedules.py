"""Schedulers that cycle a learning rate and momentum, over real processes."""

from __future__ import annotations

import copy

import torch
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import OneCycleLR

import samite
from captures import assert_close, assert_same_state, train_step
from models import MLP
from samite import Shard
from samite.runtime.session import session_of


def test_steps_under_way_have_the_numbers_of_their_call() -> None:
    """Nothing is read meanwhile, so that steps are under way while the scheduler goes on."""
    torch.manual_seed(0)
    model = MLP()
    batches = [(torch.randn(6, 16), torch.randint(0, 8, (6,))) for _ in range(12)]
    mesh = samite.mesh("cpu", engine="local", options={"threads_per_worker": 1}, dp=2)
    placements = {"batch.*": {"dp": Shard(0)}, "model.head.weight": {"dp": Shard(0)}}
    try:
        for make in (
            lambda m: SGD(m.parameters(), lr=0.01, momentum=0.9, nesterov=True),
            lambda m: AdamW([{"params": m.layers.parameters(), "weight_decay": 0.1}, {"params": m.head.parameters()}]),
        ):
            run = samite.compile(train_step, mesh=mesh, placements=placements)
            results = []
            for step, m in ((run, copy.deepcopy(model)), (train_step, copy.deepcopy(model))):
                optimizer = make(m)
                scheduler, losses = OneCycleLR(optimizer, 0.01, total_steps=13), []
                for batch in batches:
                    losses.append(step(m, optimizer, *batch))
                    scheduler.step()
                results.append(([loss.detach().clone() for loss in losses], m, optimizer))
            (losses, *mine), (wanted, *plain) = results
            assert_close(losses, wanted, 1e-5)
            assert_same_state(mine, plain, 1e-5)
            assert len(run.compilations) == 2
    finally:
        session_of(mesh).close()
