"""To and from DTensor's words: one placement a mesh axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from samite.errors import LayoutError, PlacementError, nearest
from samite.layout.factor import Dim, Factor, require_axes
from samite.layout.layout import Layout
from samite.layout.normal_form import canonical
from samite.placement import Partial, Placement, Replicate, Shard, as_placements

__all__ = ["from_placements", "to_placements"]


def from_placements(
    shape: Iterable[int],
    placements: Mapping[str, object],
    mesh: Mapping[str, int],
    order: Mapping[int, tuple[str, ...]] | None = None,
) -> Layout:
    """The layout of a tensor of `shape` placed so; axes that are not named replicate.

    A dim that several axes split is cut by them in mesh order, outermost first, unless `order` has its axes in another
    one. Placements may be torch's. Uneven and empty shards are legal. Raises PlacementError for an axis that the mesh
    lacks, a dim that the tensor lacks, two kinds of reduction, or an order that is not one of the dim's axes.
    """
    shape, given = tuple(shape), as_placements(placements)
    for axis in given:
        if axis not in mesh:
            raise PlacementError(f'the mesh has no axis "{axis}"', help=nearest(axis, mesh))
    by_axis = {axis: given[axis] for axis in mesh if axis in given}
    split: dict[int, tuple[str, ...]] = {}
    for axis, placement in by_axis.items():
        if isinstance(placement, Shard):
            dim = _dim(placement.dim, shape, f'{placement} over "{axis}"')
            split[dim] = (*split.get(dim, ()), axis)
    for dim, axes in (order or {}).items():
        dim = _dim(dim, shape, "the order of axes")
        if sorted(axes) != sorted(split.get(dim, ())):
            raise PlacementError(
                f"order of dim {dim}: have {_listed(axes)}, need each of {_listed(split.get(dim, ()))} once",
                help=f"give the axes placed by Shard({dim}), outermost first; the mesh has {_listed(mesh)}",
            )
        split[dim] = tuple(axes)
    owed = {axis: p.reduce_op for axis, p in by_axis.items() if isinstance(p, Partial)}
    kinds = sorted(set(owed.values()))
    if len(kinds) > 1:
        raise PlacementError(
            f"a value owes one kind of reduction, have {' and '.join(kinds)}",
            help="reduce over one of the axes first: the kinds do not commute",
        )
    dims = tuple((Factor(size, split.get(dim, ())),) for dim, size in enumerate(shape))
    return Layout(dims, "".join(kinds), frozenset(owed))


def to_placements(layout: Layout, mesh: Mapping[str, int]) -> dict[str, Placement]:
    """A placement for every mesh axis, in mesh order (so the values are DTensor's list).

    Lossless: `from_placements` gives an equal index map, and so does DTensor. Raises LayoutError where that cannot be:
    a dim of several factors, axes in another order than the mesh's, an uneven dim that several axes split (DTensor
    cuts the valid length of the outer chunk, a layout its buffer), or a layout that is pinned.
    """
    if layout.canonical(mesh).at:
        raise LayoutError(
            f"placements cannot say {layout}: only some ranks hold it",
            help="lay it out unpinned: all ranks hold it then",
        )
    placements: dict[str, Placement] = {axis: Replicate() for axis in mesh}
    require_axes(mesh, (*layout.axes, *layout.owed))
    for axis in layout.owed:
        placements[axis] = Partial(layout.kind)
    for index, dim in enumerate(layout.dims):
        for axis in _single(dim, index, layout, mesh).axes:
            placements[axis] = Shard(index)
    return placements


def _single(dim: Dim, index: int, layout: Layout, mesh: Mapping[str, int]) -> Factor:
    """The one factor of a dim: as it is if that will do, so that axes of size 1 are kept, else in canonical form."""
    problem = ""
    for factors in (dim, canonical(dim, mesh)):
        if len(factors) != 1:
            problem = problem or f"has {len(factors)} factors"
        elif list(factors[0].axes) != [axis for axis in mesh if axis in factors[0].axes]:
            problem = f"is split by {_listed(factors[0].axes)}, not in mesh order {_listed(mesh)}"
        elif sum(mesh[axis] > 1 for axis in factors[0].axes) > 1 and factors[0].padded(mesh):
            problem = f"of size {factors[0].size} is unevenly split by {_listed(factors[0].axes)}"
        else:
            return factors[0]
    raise LayoutError(
        f"placements cannot say {layout}: dim {index} {problem}",
        help="redistribute to one factor a dim, axes in mesh order, even if several split one dim",
    )


def _dim(dim: int, shape: tuple[int, ...], what: str) -> int:
    if not -len(shape) <= dim < len(shape):
        raise PlacementError(
            f"{what}: no dim {dim} in a tensor of shape {shape}",
            help=f"dims go from {-len(shape)} to {len(shape) - 1}" if shape else "a 0-d tensor has no dim to split",
        )
    return dim % len(shape)


def _listed(axes: Iterable[str]) -> str:
    return ", ".join(f'"{axis}"' for axis in axes) or "none"
