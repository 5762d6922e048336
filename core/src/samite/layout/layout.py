"""Layouts: how one global tensor lies on a mesh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from samite.errors import LayoutError, nearest
from samite.layout.factor import Dim, Factor, axes_of, require_axes
from samite.layout.normal_form import canonical
from samite.layout.text import parse, spell
from samite.placement import REDUCTIONS

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """The factors of every dim, and the reduction `kind` that the ranks along the `owed` axes still owe, if any.

    `kind` is "" if and only if `owed` is empty; no axis is used twice. Else LayoutError. Layouts are compared as values
    by `==`, and as index maps by the `==` of their `canonical` forms.
    """

    dims: tuple[Dim, ...]
    kind: str = ""
    owed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.kind and self.kind not in REDUCTIONS:
            raise LayoutError(f'no reduction "{self.kind}"', help=nearest(self.kind, REDUCTIONS))
        if bool(self.kind) != bool(self.owed):
            raise LayoutError(f'reduction "{self.kind}" owed over {sorted(self.owed)}', help="give both or neither")
        used = [*self.axes, *self.owed]
        if len(set(used)) != len(used):
            twice = next(axis for axis in used if used.count(axis) > 1)
            raise LayoutError(f'axis "{twice}" is used twice in {self}', help="an axis splits or reduces once a value")

    @cached_property
    def _hash(self) -> int:
        return hash((self.dims, self.kind, self.owed))

    def __hash__(
        self,
    ) -> int:  # layouts are the keys of all caches of plans and costs: one walk over the factors is enough
        return self._hash

    def __reduce__(self) -> tuple[type[Layout], tuple[tuple[Dim, ...], str, frozenset[str]]]:
        return Layout, (self.dims, self.kind, self.owed)  # the hash of a text differs from process to process

    @classmethod
    def replicated(cls, shape: Iterable[int]) -> Layout:
        """Every rank holds all of a tensor of this shape."""
        return cls(tuple((Factor(size),) for size in shape))

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout that `str` wrote so. Raises LayoutError for any other text."""
        return cls(*parse(text))

    def __str__(self) -> str:
        return spell(self.dims, self.kind, self.owed)

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
        """Whether no axis splits it and none owes."""
        return not self.axes and not self.owed

    def local_shape(self, mesh: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of the buffer on every rank, padding included."""
        return tuple(prod(f.local(mesh) for f in dim) for dim in self.dims)

    def local_size(self, mesh: Mapping[str, int]) -> int:
        """The elements of the buffer on every rank, padding included."""
        return prod(self.local_shape(mesh))

    def padded(self, mesh: Mapping[str, int]) -> bool:
        """Whether some rank's buffer is not all valid."""
        return any(f.padded(mesh) for dim in self.dims for f in dim)

    def canonical(self, mesh: Mapping[str, int]) -> Layout:
        """The one form of all layouts whose dims have these index maps; axes of size 1 neither split nor owe.

        Raises LayoutError if the mesh lacks an axis.
        """
        return _canonical(self, tuple(mesh.items()))


@lru_cache(maxsize=1 << 14)  # rules and plans ask for the same few layouts at every op of a model
def _canonical(layout: Layout, mesh_items: tuple[tuple[str, int], ...]) -> Layout:
    mesh = dict(mesh_items)
    require_axes(mesh, (*layout.axes, *layout.owed))
    owed = frozenset(axis for axis in layout.owed if mesh[axis] > 1)
    return Layout(tuple(canonical(dim, mesh) for dim in layout.dims), layout.kind if owed else "", owed)
