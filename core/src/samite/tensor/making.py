"""Making distributed tensors: of global values, of this rank's parts, and of nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from samite.eager.driver import Driver
from samite.eager.rank import Rank, digest
from samite.eager.spec import spec
from samite.eager.value import enclosing
from samite.errors import InputError, MeshError, PlacementError
from samite.layout import Layout, axes_of, from_placements
from samite.mesh import Mesh
from samite.placement import Partial, as_placement
from samite.runtime.sharding import dtype_name, lay
from samite.tensor.homes import home_of
from samite.tensor.moving import enclose, relay, valid_shape
from samite.tensor.tensor import Tensor

__all__ = ["empty", "from_local", "full", "ones", "rand", "randn", "tensor", "zeros"]

Placements = Mapping[str, object]
"""Axis -> placement, ours or torch's; axes that are not named replicate."""
Order = Mapping[int, "tuple[str, ...]"]
"""Dim -> the axes that split it, outermost first, where that is not the mesh's order."""


def tensor(
    data: Any,
    mesh: Mesh,
    placements: Placements | None = None,
    *,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    order: Order | None = None,
) -> Tensor:
    """A copy of a global value on a mesh: `samite.tensor(data, mesh, {"dp": Shard(0)})`.

    `data` is what `torch.tensor` takes, or a tensor. Where this process is a rank, every rank makes the same call with
    the same data. Raises PlacementError for an axis or dim that is not there, CollectiveMismatch if ranks differ in the
    shape, dtype or layout.
    """
    _check_mesh(mesh)
    if isinstance(data, Tensor) and data.mesh == mesh:
        layout = from_placements(data.shape, placements or {}, mesh, order)
        made: Any = relay(cast(Tensor, data.detach().to(dtype or data.dtype)), layout)
        return (made.clone() if made is data else made).requires_grad_(requires_grad)
    plain = data.read() if isinstance(data, Tensor) else data
    if isinstance(plain, torch.Tensor):
        value = plain.detach().to(dtype or plain.dtype)
    else:
        value = torch.tensor(plain, dtype=dtype)
    layout = from_placements(value.shape, placements or {}, mesh, order).canonical(mesh)
    made = _laid_out(value, layout, home_of(mesh))
    return cast(Tensor, made.requires_grad_(requires_grad))


def _check_mesh(given: object) -> None:
    if not isinstance(given, Mesh):
        raise MeshError(f"a mesh is what samite.mesh makes, have {given!r}", help='samite.mesh("cpu", dp=2)')


def _laid_out(value: torch.Tensor, layout: Layout, home: Rank | Driver) -> Tensor:
    if not isinstance(home, Rank):
        return home.adopted(Tensor, value.clone(), layout)
    said = (("the data", digest(value)),) if home.debug else ()
    home.agree(f"makes a tensor of {dtype_name(value.dtype)}{list(value.shape)} laid out as {layout}", said)
    return enclosing(lay(value, layout, home.mesh, home.rank).clone(), spec(home, layout, value.dtype), Tensor)


def from_local(
    local: torch.Tensor,
    mesh: Mesh,
    placements: Placements | None = None,
    *,
    run_check: bool = True,
    shape: Sequence[int] | None = None,
    order: Order | None = None,
) -> Tensor:
    """The tensor of which `local` is this rank's part; differentiable.

    The memory of `local` is shared where the part needs no padding. Parts of a dim that is split are equal, the last
    ones shorter or empty, as `Shard` has it. With `run_check` ranks compare shapes, dtypes and replicas (InputError,
    CollectiveMismatch); without it, which costs nothing, uneven parts need `shape`, that of the whole.
    """
    _check_mesh(mesh)
    home = home_of(mesh)
    if not isinstance(home, Rank):
        raise InputError(
            f"from_local on a mesh whose ranks are other processes ({mesh})",
            help="there a global tensor enters: samite.tensor(data, mesh, placements)",
        )
    plan = from_placements([1] * local.dim(), placements or {}, mesh, order)
    parts = _compared(local, plan, home) if run_check else [tuple(local.shape)]
    whole = tuple(shape) if shape is not None else _whole_shape(parts, plan, mesh, compared=run_check)
    layout = from_placements(whole, placements or {}, mesh, order).canonical(mesh)
    for rank, part in enumerate(parts) if run_check else [(home.rank, tuple(local.shape))]:
        if part != (need := valid_shape(layout, mesh, rank)):
            raise InputError(
                f"rank {rank} has a part of shape {part}; of a tensor of shape {whole} laid out so it is {need}",
                help="parts of a dim are equal, the last ones shorter; give shape= if run_check is off",
            )
    return enclose(local, spec(home, layout, local.dtype))


def _compared(local: torch.Tensor, plan: Layout, home: Rank) -> list[tuple[int, ...]]:
    """The shapes of all ranks' parts. Replicas must be equal."""
    home.agree(f"makes a tensor of parts of {dtype_name(local.dtype)} with {local.dim()} dims laid out as {plan}", ())
    if home.communicator is None:
        return [tuple(local.shape)]
    mine = torch.tensor([*local.shape, digest(local)], dtype=torch.int64)
    said = home.communicator.all_gather(mine.unsqueeze(0), home.mesh.axes, 0).tolist()
    first: dict[tuple[int, ...], int] = {}
    for rank, (*_, value) in enumerate(said):
        at = home.mesh.coordinates(rank)
        place = tuple(at[axis] for axis in (*plan.axes, *sorted(plan.owed)))
        if said[first.setdefault(place, rank)][-1] != value:
            raise InputError(
                f"replicas of a tensor differ between ranks {first[place]} and {rank}",
                help="seed the ranks alike, or broadcast the value; a value of each rank's own is Shard or Partial",
            )
    return [tuple(sizes) for *sizes, _ in said]


def _whole_shape(parts: list[tuple[int, ...]], plan: Layout, mesh: Mesh, *, compared: bool) -> tuple[int, ...]:
    whole: list[int] = []
    for dim, factors in enumerate(plan.dims):
        axes = axes_of(factors)
        if not compared:
            size = parts[0][dim]
            for axis in axes:
                size *= mesh[axis]
            whole.append(size)
        else:
            whole.append(sum(parts[rank][dim] for rank in mesh.peers(0, axes)))
    return tuple(whole)


def full(
    size: Sequence[int],
    fill_value: float,
    mesh: Mesh,
    placements: Placements | None = None,
    *,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    order: Order | None = None,
) -> Tensor:
    """A tensor of one number, on a mesh; each rank makes its part."""
    _check_mesh(mesh)
    if any(isinstance(as_placement(p), Partial) for p in (placements or {}).values()):
        raise PlacementError("a new tensor owes nothing", help="use Shard or Replicate")
    home, dtype = home_of(mesh), dtype or torch.full((), fill_value).dtype
    layout = from_placements(tuple(size), placements or {}, mesh, order).canonical(mesh)
    if isinstance(home, Rank):
        local = torch.full(layout.local_shape(mesh), fill_value, dtype=dtype)
        made: Any = enclosing(local, spec(home, layout, dtype), Tensor)
    else:
        made = home.adopted(Tensor, torch.full(tuple(size), fill_value, dtype=dtype), layout)
    return cast(Tensor, made.requires_grad_(requires_grad))


def zeros(size: Sequence[int], mesh: Mesh, placements: Placements | None = None, **options: Any) -> Tensor:
    """`full` of 0, of torch's default dtype."""
    return full(size, 0.0, mesh, placements, **_default_dtype(options))


def ones(size: Sequence[int], mesh: Mesh, placements: Placements | None = None, **options: Any) -> Tensor:
    """`full` of 1, of torch's default dtype."""
    return full(size, 1.0, mesh, placements, **_default_dtype(options))


def empty(size: Sequence[int], mesh: Mesh, placements: Placements | None = None, **options: Any) -> Tensor:
    """A tensor of nothing in particular: of zeros, which cost little and are the same everywhere."""
    return zeros(size, mesh, placements, **options)


def rand(size: Sequence[int], mesh: Mesh, placements: Placements | None = None, **options: Any) -> Tensor:
    """Uniform in [0, 1). The numbers follow from torch's seed, whatever the mesh and the placements."""
    return _drawn("uniform_", size, mesh, placements, options)


def randn(size: Sequence[int], mesh: Mesh, placements: Placements | None = None, **options: Any) -> Tensor:
    """Normal, of mean 0 and variance 1. The numbers follow from torch's seed, whatever the mesh and the placements."""
    return _drawn("normal_", size, mesh, placements, options)


def _drawn(
    draw: str, size: Sequence[int], mesh: Mesh, placements: Placements | None, options: dict[str, Any]
) -> Tensor:
    requires_grad = bool(options.pop("requires_grad", False))
    made = empty(size, mesh, placements, **options)
    return cast(Tensor, getattr(made, draw)().requires_grad_(requires_grad))


def _default_dtype(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "dtype": options.get("dtype") or torch.get_default_dtype()}
