"""The ways to train that `gpt_step` compares. Each builder makes the step of one process, from the same model and data.

Imports stay inside the builders, so that a process holds what its own way needs and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.peers import Place, Side, Step
from benchmarks.workload import LEARNING_RATE, Workload, train_step
from samite.errors import SamiteError

__all__ = ["SIDES"]

Parallelism = Literal["dp", "tp"]
Mode = Literal["aten", "inductor"]
RANKS = 2


def one_process(workload: Workload, place: Place) -> Step:
    """One process, no parallelism but torch's own threads."""
    model = workload.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    return _step(train_step, model, optimizer, *workload.data())


def distributed_data_parallel(workload: Workload, place: Place, **options: Any) -> Step:
    """Each rank has a part of the batch; gradients are averaged while backward runs. `options` are AdamW's."""
    from torch.nn.parallel import DistributedDataParallel

    _join(place)
    model = DistributedDataParallel(workload.model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, **options)
    tokens, targets = (x.chunk(place.ranks)[place.rank] for x in workload.data())
    return _step(train_step, model, optimizer, tokens, targets)


def dtensor_tensor_parallel(workload: Workload, place: Place, **options: Any) -> Step:
    """Megatron's split of each block, by `parallelize_module`. `options` are AdamW's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

    _join(place)
    mesh = init_device_mesh("cpu", (place.ranks,))
    model = workload.model()
    columns, rows = ("attention.q", "attention.k", "attention.v", "up"), ("attention.proj", "down")
    for block in model.blocks:
        plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in columns}
        plan |= {name: RowwiseParallel() for name in rows}
        parallelize_module(block, mesh, plan)
    # A group each, since multi-tensor kernels refuse lists of both kinds.
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in model.parameters():
        groups[isinstance(parameter, DTensor)].append(parameter)
    optimizer = torch.optim.AdamW([{"params": group} for group in groups.values()], lr=LEARNING_RATE, **options)
    return _step(train_step, model, optimizer, *workload.data())


def samite_mesh(
    workload: Workload, place: Place, *, parallelism: Parallelism, mode: Literal["aten", "inductor"]
) -> Step:
    """The caller of two workers, which are processes of their own with one thread each."""
    import samite
    from samite import Shard

    placements = {
        "dp": {"tokens": {"dp": Shard(0)}, "targets": {"dp": Shard(0)}},
        "tp": {"model.*.attention.[qkv].weight": {"tp": Shard(0)}, "model.*.up.weight": {"tp": Shard(0)}},
    }
    mesh = samite.mesh("cpu", engine="local", options={"threads_per_worker": 1}, **{parallelism: RANKS})
    compiled = samite.compile(train_step, mesh=mesh, placements=placements[parallelism], mode=mode)
    model = workload.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    return _step(compiled, model, optimizer, *workload.data())


def _join(place: Place) -> None:
    import torch.distributed

    torch.distributed.init_process_group("gloo", init_method=place.rendezvous, rank=place.rank, world_size=place.ranks)


def _step(
    function: Callable[..., Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor
) -> Step:
    return lambda: function(model, optimizer, tokens, targets).item()


def _samite(name: str, parallelism: Parallelism, mode: Mode, absent_if: tuple[type[Exception], ...] = ()) -> Side:
    return Side(name, partial(samite_mesh, parallelism=parallelism, mode=mode), absent_if=absent_if)


_foreach_ddp = partial(distributed_data_parallel, foreach=True)
_fused_ddp = partial(distributed_data_parallel, fused=True)
_foreach_dtensor = partial(dtensor_tensor_parallel, foreach=True)
_fused_dtensor = partial(dtensor_tensor_parallel, fused=True)

SIDES = {
    "eager": Side("PyTorch, one process of two threads", one_process, threads=RANKS),
    "ddp": Side("DistributedDataParallel", _foreach_ddp, RANKS),
    "ddp-fused": Side("DistributedDataParallel, fused AdamW", _fused_ddp, RANKS),
    "samite-dp": _samite("Samite data parallel, ATen", "dp", "aten"),
    "samite-dp-inductor": _samite("Samite data parallel, Inductor", "dp", "inductor", (SamiteError,)),
    "dtensor": Side("DTensor tensor parallel", _foreach_dtensor, RANKS),
    "dtensor-fused": Side("DTensor tensor parallel, fused AdamW", _fused_dtensor, RANKS),
    "samite-tp": _samite("Samite tensor parallel, ATen", "tp", "aten"),
    "samite-tp-inductor": _samite("Samite tensor parallel, Inductor", "tp", "inductor", (SamiteError,)),
}
"""By the name that `--side` takes, in the order of a round: each of Samite's follows what it is compared with."""
