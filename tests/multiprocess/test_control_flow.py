"""Control flow on real processes: all ranks take the same way, and communicate within branches and iterations."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch

import control_flows as flows
import samite
from control_flows import Layers, agree, plainly, train
from samite import Shard

compiles = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
INDUCTOR = pytest.param("inductor", marks=[pytest.mark.slow, compiles])


@pytest.mark.parametrize("mode", ["aten", INDUCTOR])
def test_layers_train(mode: str) -> None:
    torch.manual_seed(0)
    model, x, y = Layers(), torch.randn(7, 6), torch.randn(7, 6)
    alone = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, alone)]
    placements = {"[xy]": {"dp": Shard(0)}, "model.up": {"tp": Shard(2)}, "model.down": {"tp": Shard(1)}}
    step = samite.compile(train, mesh=samite.mesh("cpu", dp=2, tp=2), placements=placements, mode=mode)
    for _ in range(3):
        agree(step(model, optimizers[0], x, y), plainly(train, alone, optimizers[1], x, y))


@pytest.mark.parametrize("mode", ["aten", INDUCTOR])
def test_branches(mode: str) -> None:
    torch.manual_seed(0)
    x, w = torch.rand(5, 6), torch.randn(6, 6)
    placements = {"x": {"dp": Shard(0)}, "w": {"dp": Shard(1)}}
    step = samite.compile(flows.nested, mesh=samite.mesh("cpu", dp=2), placements=placements, mode=mode)
    for given in (x, -x):
        here, there = (w.clone().requires_grad_() for _ in range(2))
        agree(step(given, there), plainly(flows.nested, given, here))
        agree(there.grad, here.grad)


@pytest.mark.parametrize("mode", ["aten", INDUCTOR])
def test_a_loop_whose_length_is_data(mode: str) -> None:
    x, w = torch.rand(5, 6), torch.randn(6, 6)
    step = samite.compile(flows.halved, mesh=samite.mesh("cpu", dp=2), placements={"x": {"dp": Shard(0)}}, mode=mode)
    agree(step(x, w), plainly(flows.halved, x, w))


@compiles
@pytest.mark.slow
def test_what_inductor_keeps_is_told_apart_by_its_regions() -> None:
    x, mesh = torch.rand(4, 6), samite.mesh("cpu", dp=2)
    for taken in (torch.sin, torch.cos):
        step = samite.compile(
            lambda x, taken=taken: torch.cond(x.sum() > 0, lambda: taken(x), lambda: x * 2),
            mesh=mesh,
            placements={"x": {"dp": Shard(0)}},
            mode="inductor",
        )
        agree(step(x), taken(x))
