"""The same calls through `torch.distributed.tensor`, for comparison.

One process simulates the ranks (`LocalTensor`). What does not come out right there for a reason that could be the
simulation's is tried again by real processes (gloo), and their word counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree

from samite.mesh import Mesh
from samite.testing.opinfo.calls import OpCall
from samite.testing.opinfo.outcomes import Outcome, difference
from samite.testing.opinfo.placements import Placed
from samite.testing.opinfo.processes import in_child, in_ranks

__all__ = ["run_dtensor"]


def run_dtensor(call: OpCall, drawn: Sequence[tuple[Mesh, Placed]], wanted: Any, *, random: bool) -> list[Outcome]:
    """What DTensor makes of a call at each mesh and placements: right, wrong, or unsupported, whatever it raises.

    Of random numbers only shapes are compared, since its generator is its own.
    """
    values = call.defined and not random

    def simulate() -> list[Outcome]:
        return [_simulate(call, placed, mesh, wanted, values) for mesh, placed in drawn]

    # In a child, for DTensor keeps what the simulation is about in caches, where real ranks would find it.
    found = in_child(simulate)
    if len(found) != len(drawn):  # the child died: a kernel that crashes
        found = [in_child(lambda at=at: [_simulate(call, at[1], at[0], wanted, values)])[0] for at in drawn]
    return [
        in_ranks(mesh, lambda real, placed=placed, mesh=mesh: _outcome(call, placed, mesh, real, None, wanted, values))
        if _doubtful(outcome)
        else outcome
        for (mesh, placed), outcome in zip(drawn, found, strict=True)
    ]


def _doubtful(outcome: Outcome) -> bool:
    return outcome.verdict == "wrong" or "Local" in outcome.reason


def _simulate(call: OpCall, placed: Placed, mesh: Mesh, wanted: Any, values: bool) -> Outcome:
    with _simulated(mesh) as (device_mesh, simulation):
        return _outcome(call, placed, mesh, device_mesh, simulation, wanted, values)


def _outcome(
    call: OpCall, placed: Placed, mesh: Mesh, device_mesh: Any, simulation: Any, wanted: Any, values: bool
) -> Outcome:
    try:
        made = _run(call, placed, mesh, device_mesh, simulation)
    except Exception as error:
        return Outcome("unsupported", _reason(error))
    for rank in range(mesh.size if simulation else 1):
        result = pytree.tree_map(lambda x, rank=rank: _on_rank(x, rank), made)
        if problem := difference(result, wanted, values=values):
            return Outcome("wrong", problem)
    return Outcome("right")


def _run(call: OpCall, placed: Placed, mesh: Mesh, device_mesh: Any, simulation: Any) -> Any:
    """The outputs, each tensor whole: of simulated ranks a LocalTensor, else this rank's."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def distributed(index: int, x: torch.Tensor) -> torch.Tensor:
        axes = placed.get(index, {})
        wanted = [Shard(axes[axis].dim % x.dim()) if axis in axes else Replicate() for axis in mesh]
        value = x.clone() if simulation is None else simulation.rank_map(lambda _: x.clone())
        return distribute_tensor(value, device_mesh, wanted)

    def whole(y: Any) -> Any:
        made: Any = y.full_tensor() if isinstance(y, DTensor) else y
        return (made.wait() if hasattr(made, "wait") else made).detach()

    outputs = call.fn([distributed(i, x) for i, x in enumerate(call.tensors)])
    return pytree.tree_map_only(torch.Tensor, whole, outputs)


def _on_rank(value: Any, rank: int) -> Any:
    parts = getattr(value, "_local_tensors", None)
    return value if parts is None else parts[rank]


@contextmanager
def _simulated(mesh: Mesh) -> Iterator[tuple[Any, Any]]:
    """(A device mesh, the mode in which one process is all its ranks)."""
    import torch.distributed as dist
    from torch.distributed._local_tensor import LocalTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=mesh.size, store=FakeStore())
    try:
        device_mesh = init_device_mesh("cpu", mesh.shape, mesh_dim_names=mesh.axes)
        with LocalTensorMode(mesh.size) as mode:
            yield device_mesh, mode
    finally:
        dist.destroy_process_group()


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "sharding strategy registered" in text:
        return f"no strategy: {text.split('Operator ')[-1].split(' ')[0]}"
    if "Sharding propagation failed for" in text:
        text = text.split("Sharding propagation failed for ")[0] + "sharding propagation failed"
    return f"{type(error).__name__}: {text[:120]}"
