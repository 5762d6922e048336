"""What `eager` compares: chains of ops on both libraries' tensors, and a GPT on each."""

from __future__ import annotations

import gc
import itertools
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import Place, Step
from benchmarks.workload import Workload

__all__ = ["CHAIN", "CHAINS", "both_libraries", "dtensor_gpt", "samite_gpt", "whole_dtensor_gpt"]

CHAIN = 200
"""Ops of a chain."""

Chain = Callable[[Tensor, Tensor], Any]


def _add(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(CHAIN):
        x = x + y
    return x


def _mm(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(CHAIN):
        x = x @ y
    return x


def _view(x: Tensor, y: Tensor) -> Tensor:
    """Each of the same tensor: of a view of a view torch itself composes all functions before it."""
    view = x
    for _ in range(CHAIN):
        view = x.view(64)
    return view


def _relu(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(CHAIN):
        x = x.relu()
    return x


OPS: dict[str, Chain] = {"add": _add, "mm": _mm, "view": _view, "relu": _relu}
CHAINS = [
    f"{library} {op}{graph}" for graph in ("", ", with gradients") for op in OPS for library in ("DTensor", "Samite")
]
"""In the order of a round."""


def both_libraries(workload: Workload, place: Place) -> Step:
    """Step k is chain k of `CHAINS`, over and over."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import samite

    _join(place)
    there, mesh = init_device_mesh("cpu", (place.ranks,)), samite.mesh("cpu", engine="torchrun", d=place.ranks)
    x, y = torch.randn(8, 8) * 0.1, torch.eye(8)
    mine, its = {"d": samite.Shard(0)}, [Shard(0)]

    def chains() -> Any:
        while True:
            for graph in (False, True):
                for op, chain in OPS.items():
                    whole = op == "mm"  # its second operand is replicated, that of others is split as the first
                    theirs = (
                        distribute_tensor(x, there, its).requires_grad_(graph),
                        distribute_tensor(y, there, [Replicate()] if whole else its),
                    )
                    ours = (
                        samite.tensor(x, mesh, mine, requires_grad=graph),
                        samite.tensor(y, mesh, {} if whole else mine),
                    )
                    yield lambda chain=chain, given=theirs: chain(*given)
                    yield lambda chain=chain, given=ours: chain(*given)

    turn = chains()
    kept: list[Any] = []
    done = itertools.count(1)

    def step() -> float:
        kept.clear()  # freeing a graph is part of the chain that made it, not of the next one's
        if next(done) == len(CHAINS):  # what both sides have loaded by now is not to be looked through again and again
            gc.collect()
            gc.freeze()
        kept.append(next(turn)())
        return 0.0

    return step


def dtensor_gpt(workload: Workload, place: Place) -> Step:
    """Megatron's split of each block, by `parallelize_module`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

    _join(place)
    mesh, model = init_device_mesh("cpu", (place.ranks,)), workload.model()
    for block in model.blocks:
        plan: dict[str, ParallelStyle] = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
        plan |= {"up": ColwiseParallel(), "attention.proj": RowwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh, plan)
    return _forward_and_backward(model, *workload.data())


def whole_dtensor_gpt(workload: Workload, place: Place) -> Step:
    """The same split, every tensor being a DTensor, as every one is distributed on Samite's side."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor
    from torch.distributed.tensor.experimental import implicit_replication
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

    _join(place)
    mesh, model = init_device_mesh("cpu", (place.ranks,)), workload.model()
    for block in model.blocks:
        columns, rows = ColwiseParallel(use_local_output=False), RowwiseParallel(use_local_output=False)
        plan: dict[str, ParallelStyle] = {f"attention.{name}": columns for name in "qkv"}
        plan |= {"up": columns, "attention.proj": rows, "down": rows}
        parallelize_module(block, mesh, plan)
    distribute_module(model, mesh)
    step = _forward_and_backward(model, *(distribute_tensor(x, mesh, [Replicate()]) for x in workload.data()))

    def replicating() -> float:
        with implicit_replication():
            return step()

    return replicating


def samite_gpt(workload: Workload, place: Place) -> Step:
    """The same split; nothing is compiled."""
    import samite
    from samite import Shard

    _join(place)
    mesh = samite.mesh("cpu", engine="torchrun", tp=place.ranks)
    columns, rows = {"tp": Shard(0)}, {"tp": Shard(1)}
    model = workload.model()
    plan = {"blocks.*.attention.[qkv].*": columns, "blocks.*.up.*": columns}
    plan |= {"blocks.*.attention.proj.weight": rows, "blocks.*.down.weight": rows}
    samite.distribute_module(model, mesh, plan)
    return _forward_and_backward(model, *(samite.tensor(x, mesh) for x in workload.data()))


def _forward_and_backward(model: torch.nn.Module, tokens: Tensor, targets: Tensor) -> Step:
    def step() -> float:
        loss = model(tokens, targets)
        loss.backward()
        model.zero_grad()
        return loss.detach().item()

    return step


def _join(place: Place) -> None:
    """torch's process group, and the variables by which a launcher tells a process that it is a rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=place.rendezvous, rank=place.rank, world_size=place.ranks)
    store: Any = dist.distributed_c10d._get_default_store()
    if place.rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            store.set("samite port", str(probe.getsockname()[1]))
    os.environ |= {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.ranks),
        "LOCAL_WORLD_SIZE": str(place.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": store.get("samite port").decode(),
    }
