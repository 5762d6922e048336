"""Layouts: how one global tensor lies on a mesh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from samite.errors import LayoutError, nearest
from samite.layout.factor import Dim, Factor, axes_of, require_axes
from samite.layout.normal_form import canonical
from samite.layout.text import parse, spell
from samite.placement import REDUCTIONS

__all__ = ["Layout", "refuse_pinned"]


@dataclass(frozen=True)
class Layout:
    """The factors of every dim, and the reduction `kind` that the ranks along the `owed` axes still owe, if any.

    A layout is pinned if it is `at` an index of some axes: only the ranks there hold the value, as a parameter of one
    pipeline stage lies (XLA calls it maximal sharding, here along these axes alone). They are its home; for all else
    the home is a mesh without the axes of `at`.

    `kind` is "" if and only if `owed` is empty; `at` is sorted by axis; no axis is used twice. Else LayoutError.
    Layouts are compared as values by `==`, and as index maps by the `==` of their `canonical` forms.
    """

    dims: tuple[Dim, ...]
    kind: str = ""
    owed: frozenset[str] = frozenset()
    at: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.kind and self.kind not in REDUCTIONS:
            raise LayoutError(f'no reduction "{self.kind}"', help=nearest(self.kind, REDUCTIONS))
        if bool(self.kind) != bool(self.owed):
            raise LayoutError(f'reduction "{self.kind}" owed over {sorted(self.owed)}', help="give both or neither")
        if self.at and (list(self.at) != sorted(self.at) or any(index < 0 for _, index in self.at)):
            raise LayoutError(f"a home at {self.at}", help="give pairs of an axis and an index from 0, sorted by axis")
        used = [*self.axes, *self.owed, *(axis for axis, _ in self.at)]
        if len(set(used)) != len(used):
            twice = next(axis for axis in used if used.count(axis) > 1)
            raise LayoutError(
                f'axis "{twice}" is used twice in {self}', help="an axis splits, reduces or pins once a value"
            )

    @cached_property
    def _hash(self) -> int:
        return hash((self.dims, self.kind, self.owed, self.at))

    def __hash__(
        self,
    ) -> int:  # layouts are the keys of all caches of plans and costs: one walk over the factors is enough
        return self._hash

    def __reduce__(self) -> tuple[type[Layout], tuple[object, ...]]:
        return Layout, (self.dims, self.kind, self.owed, self.at)  # the hash of a text differs from process to process

    @classmethod
    def replicated(cls, shape: Iterable[int]) -> Layout:
        """Every rank holds all of a tensor of this shape."""
        return cls(tuple((Factor(size),) for size in shape))

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout that `str` wrote so. Raises LayoutError for any other text."""
        return cls(*parse(text))

    def __str__(self) -> str:
        return spell(self.dims, self.kind, self.owed, self.at)

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return tuple(prod(f.size for f in dim) for dim in self.dims)

    @property
    def ndim(self) -> int:
        return len(self.dims)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that split a dim, dim by dim, outermost first."""
        return tuple(axis for dim in self.dims for axis in axes_of(dim))

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds all of it: no axis splits it, owes or pins it."""
        return not self.axes and not self.owed and not self.at

    def pinned(self, at: Mapping[str, int]) -> Layout:
        """The same within the ranks at these indices alone, whatever its home was."""
        return replace(self, at=tuple(sorted(at.items())))

    def unpinned(self) -> Layout:
        """The same on the ranks at every index."""
        return replace(self, at=()) if self.at else self

    def held_by(self, coordinates: Mapping[str, int]) -> bool:
        """Whether the rank at these indices holds a part of it, be it an empty one."""
        return all(coordinates[axis] == index for axis, index in self.at)

    def local_shape(self, mesh: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of the buffer on every rank that holds one, padding included."""
        return tuple(prod(f.local(mesh) for f in dim) for dim in self.dims)

    def local_size(self, mesh: Mapping[str, int]) -> int:
        """The elements of the buffer on every rank that holds one, padding included."""
        return prod(self.local_shape(mesh))

    def padded(self, mesh: Mapping[str, int]) -> bool:
        """Whether a buffer on some rank is not all valid."""
        return any(f.padded(mesh) for dim in self.dims for f in dim)

    def canonical(self, mesh: Mapping[str, int]) -> Layout:
        """The one form of all layouts whose dims have these index maps; axes of size 1 neither split, owe nor pin.

        Raises LayoutError if the mesh lacks an axis, or an index of `at`.
        """
        return _canonical(self, tuple(mesh.items()))


@lru_cache(maxsize=1 << 14)  # rules and plans ask for the same few layouts at every op of a model
def _canonical(layout: Layout, mesh_items: tuple[tuple[str, int], ...]) -> Layout:
    mesh = dict(mesh_items)
    require_axes(mesh, (*layout.axes, *layout.owed, *(axis for axis, _ in layout.at)))
    for axis, index in layout.at:
        if index >= mesh[axis]:
            raise LayoutError(
                f'{layout} is at index {index} of axis "{axis}", which has size {mesh[axis]}',
                help=f"indices go from 0 to {mesh[axis] - 1}",
            )
    owed = frozenset(axis for axis in layout.owed if mesh[axis] > 1)
    at = tuple((axis, index) for axis, index in layout.at if mesh[axis] > 1)
    return Layout(tuple(canonical(dim, mesh) for dim in layout.dims), layout.kind if owed else "", owed, at)


def refuse_pinned(layouts: Iterable[Layout | None], who: str) -> None:
    """Raises LayoutError if one is pinned: `who` decides for all ranks alike."""
    for layout in layouts:
        if layout is not None and layout.at:
            raise LayoutError(
                f"{who} a value laid out as {layout}, which only some ranks hold",
                help="place the program that runs on these ranks, with unpinned() layouts",
            )
