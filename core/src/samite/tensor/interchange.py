"""DTensors in and out. Where no shard is padded neither way copies."""

from __future__ import annotations

from typing import Any

from samite.eager.rank import Rank
from samite.eager.spec import spec
from samite.errors import InputError, LayoutError, MeshError, PlacementError
from samite.layout import from_placements, to_placements
from samite.mesh import Mesh
from samite.placement import Partial, Placement, Replicate, Shard
from samite.tensor.homes import home_of
from samite.tensor.moving import enclose, valid_part
from samite.tensor.tensor import Tensor

__all__ = ["from_dtensor", "to_dtensor"]


def from_dtensor(dtensor: Any, mesh: Mesh | None = None) -> Tensor:
    """The same tensor. `mesh` has the axes of the DeviceMesh, in order; without it they have the names there.

    Differentiable. Raises MeshError for a DeviceMesh whose axes have no names, that does not number its ranks row by
    row, or that is not of the size of `mesh`; PlacementError for a placement that is of torch alone (strided shards).
    """
    there = dtensor.device_mesh
    mesh = _mesh_of(there) if mesh is None else mesh
    if tuple(there.shape) != mesh.shape or there.mesh.flatten().tolist() != list(range(mesh.size)):
        raise MeshError(
            f"a DTensor on {there}, the mesh is {mesh}", help="give a mesh of the same shape, ranks numbered row by row"
        )
    home = home_of(mesh)
    if not isinstance(home, Rank):
        raise InputError(f"a DTensor on a mesh whose ranks are other processes ({mesh})", help='engine="torchrun"')
    layout = from_placements(dtensor.shape, dict(zip(mesh.axes, dtensor.placements, strict=True)), mesh)
    try:
        to_placements(layout, mesh)
    except LayoutError as error:
        raise PlacementError(
            f"a DTensor of shape {tuple(dtensor.shape)}, {dtensor.placements}: {error.what}",
            help="redistribute it so that one axis splits an uneven dim",
        ) from error
    return enclose(dtensor.to_local(), spec(home, layout, dtensor.dtype))


def to_dtensor(x: Tensor, device_mesh: Any = None) -> Any:
    """The same tensor as a DTensor, on a DeviceMesh of the mesh's shape: without it one is made, with the axes' names.

    Differentiable. Raises LayoutError where DTensor's placements cannot say how it lies, MeshError if torch.distributed
    has no process group.
    """
    from torch.distributed.tensor import DTensor

    if not isinstance(x.home, Rank):
        raise InputError(f"a DTensor of a tensor whose parts are on other processes ({x.mesh})", help="x.full_tensor()")
    placements = [_torch_placement(p) for p in to_placements(x.distribution, x.mesh).values()]
    there = _device_mesh(x.mesh, x.device.type) if device_mesh is None else device_mesh
    if tuple(there.shape) != x.mesh.shape:
        raise MeshError(f"{there} for a tensor on {x.mesh}", help="give a DeviceMesh of the same shape")
    local = valid_part(x, None)
    return DTensor.from_local(local, there, placements, run_check=False, shape=x.shape, stride=x.stride())


def _mesh_of(there: Any) -> Mesh:
    from samite.config import Settings

    if not there.mesh_dim_names:
        raise MeshError("a DeviceMesh whose axes have no names", help="name them, or give mesh=samite.mesh(...)")
    return Mesh(tuple(there.mesh_dim_names), tuple(there.shape), Settings().backends, "torchrun")


def _device_mesh(mesh: Mesh, device: str) -> Any:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_initialized():
        raise MeshError("a DTensor needs torch's process group", help="torch.distributed.init_process_group() first")
    if mesh not in _device_meshes:
        _device_meshes[mesh] = init_device_mesh(device, mesh.shape, mesh_dim_names=mesh.axes)
    return _device_meshes[mesh]


_device_meshes: dict[Mesh, Any] = {}


def _torch_placement(placement: Placement) -> Any:
    import torch.distributed.tensor as words

    match placement:
        case Shard(dim):
            return words.Shard(dim)
        case Replicate():
            return words.Replicate()
        case Partial(reduce_op):
            return words.Partial("product" if reduce_op == "prod" else reduce_op)
