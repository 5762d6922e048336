"""Views: a reshape merges and splits factors, and moves none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod

from samite.errors import LayoutError
from samite.layout.factor import Dim, Factor, axes_of, merged, require_axes, split, without

__all__ = ["regroup"]


def regroup(
    dims: Iterable[Dim], sizes: Iterable[int], mesh: Mapping[str, int]
) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """A reshape to `sizes`: (what the input must be, what the result then is).

    The input must be as it is, less the axes in the way, which are gathered innermost first; then reshaping the local
    buffer to the result's local shape is the reshape of the whole. Cached. Raises LayoutError if the element counts
    differ or the mesh lacks an axis.
    """
    return _regroup(tuple(dims), tuple(sizes), tuple(mesh.items()))


@lru_cache(maxsize=1 << 14)
def _regroup(
    dims: tuple[Dim, ...], sizes: tuple[int, ...], mesh_items: tuple[tuple[str, int], ...]
) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    mesh = dict(mesh_items)
    require_axes(mesh, (axis for dim in dims for axis in axes_of(dim)))
    shape = tuple(prod(f.size for f in dim) for dim in dims)
    if prod(sizes) != prod(shape):
        raise LayoutError(
            f"cannot view shape {shape} as {sizes}: {prod(shape)} elements against {prod(sizes)}",
            help="give sizes with the same product",
        )
    if sizes == shape:
        return dims, dims
    if not prod(sizes):  # every buffer is empty, whatever its layout: nothing to gather
        return dims, tuple((Factor(size),) for size in sizes)
    while True:
        result = _deal(merged((f for dim in dims for f in dim), mesh), sizes, mesh)
        if not isinstance(result, str):
            return dims, result
        dims = without(dims, (result,))


def _deal(flat: Dim, sizes: Sequence[int], mesh: Mapping[str, int]) -> tuple[Dim, ...] | str:
    """`flat` cut into groups with these products, or the axis that is in the way."""
    rest = list(flat)
    dims: list[Dim] = []
    for size in sizes:
        group: list[Factor] = []
        while size != 1 or (rest and rest[0].size == 1):
            f = rest[0]
            if size % f.size == 0:
                group.append(rest.pop(0))
                size //= f.size
            elif f.size % size == 0 and (pair := split(f, size, mesh)):
                group.append(pair[0])
                rest[0], size = pair[1], 1
            else:  # this factor's innermost axis, else one that keeps it from merging with a neighbour
                return (axes_of(rest[:1])[-1:] or axes_of(rest)[:1] or axes_of(flat)[-1:])[0]
        dims.append(tuple(group) or (Factor(1),))
    if left := axes_of(rest):  # an owner (1, axes) without a dim to live in
        return left[-1]
    return tuple(dims)
