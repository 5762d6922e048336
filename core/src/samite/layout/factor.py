"""Factors: the algebra of one tensor dim over a mesh.

A dim is a major-to-minor tuple of factors. A factor `(size, axes)` is cut by each axis in turn, outermost first, each
time into equal chunks of ceil length, so that every rank holds a buffer of one shape; what is valid in it depends on
the rank's axis indices alone. What lies beyond the valid length is padding, and its value undefined.

Functions take any mapping from axis to size as the mesh, in mesh order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from samite.errors import LayoutError, nearest

__all__ = ["Dim", "Factor", "axes_of", "merge", "merged", "places", "require_axes", "split", "without"]


@dataclass(frozen=True)
class Factor:
    """`size` elements, cut by `axes` in turn, outermost first."""

    size: int
    axes: tuple[str, ...] = ()

    def chunks(self, mesh: Mapping[str, int]) -> list[int]:
        """Buffer length before any axis, after the first, after the second, and so on."""
        lengths = [self.size]
        for axis in self.axes:
            lengths.append(-(-lengths[-1] // mesh[axis]))
        return lengths

    def local(self, mesh: Mapping[str, int]) -> int:
        """Buffer length on every rank."""
        return self.chunks(mesh)[-1]

    def span(self, mesh: Mapping[str, int], at: Mapping[str, int]) -> tuple[int, int]:
        """(first global index, valid length) on the rank at coordinates `at`.

        The length is clamped at every level, not once at the end: an inner chunk can run past its outer chunk
        (3 over 2 is 2 + 1), and what lies there belongs to the next outer chunk.
        """
        first, valid = 0, self.size
        for axis, chunk in zip(self.axes, self.chunks(mesh)[1:], strict=True):
            first, valid = first + at[axis] * chunk, min(max(valid - at[axis] * chunk, 0), chunk)
        return first, valid

    def padded(self, mesh: Mapping[str, int]) -> bool:
        """Whether some rank's buffer is not all valid."""
        return self.local(mesh) * prod(mesh[axis] for axis in self.axes) != self.size


Dim = tuple[Factor, ...]


def places(dim: Dim, mesh: Mapping[str, int], at: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """(positions in the local buffer, global indices) of a dim's valid elements on one rank, in ascending position.

    For small dims: code that moves data reshapes a dim to its factors instead, and slices each by its `span`.
    """
    spans = [f.span(mesh, at) for f in dim]
    positions: list[int] = []
    indices: list[int] = []
    for digits in product(*(range(valid) for _, valid in spans)):
        position = index = 0
        for digit, f, (first, _) in zip(digits, dim, spans, strict=True):
            position, index = position * f.local(mesh) + digit, index * f.size + first + digit
        positions.append(position)
        indices.append(index)
    return positions, indices


def merge(major: Factor, minor: Factor, mesh: Mapping[str, int]) -> Factor | None:
    """One factor with the index map of `major` then `minor`, if there is one. The whole algebra rests on this.

    They merge exactly when the chunk lists agree and the minor one is unsplit, or the major one's local size is 1.
    """
    if major == Factor(1):
        return minor
    if minor == Factor(1):
        return major
    if minor.axes and major.local(mesh) != 1:
        return None
    one = Factor(major.size * minor.size, major.axes + minor.axes)
    chunks = [length * minor.size for length in major.chunks(mesh)] + minor.chunks(mesh)[1:]
    return one if one.chunks(mesh) == chunks else None


def split(f: Factor, major: int, mesh: Mapping[str, int]) -> tuple[Factor, Factor] | None:
    """`f` as factors of sizes `major` and `f.size / major`, if `merge` would give `f` back."""
    if major < 1 or f.size % major:
        return None
    for k in range(len(f.axes) + 1):
        outer, inner = Factor(major, f.axes[:k]), Factor(f.size // major, f.axes[k:])
        if merge(outer, inner, mesh) == f:
            return outer, inner
    return None


def merged(dim: Iterable[Factor], mesh: Mapping[str, int]) -> Dim:
    """The same index map with axes of size 1 left out and neighbours merged; never empty."""
    out: list[Factor] = []
    for f in dim:
        out.append(Factor(f.size, tuple(axis for axis in f.axes if mesh[axis] > 1)) if f.axes else f)
        while len(out) > 1 and (one := merge(out[-2], out[-1], mesh)):
            out[-2:] = [one]
    return tuple(out) or (Factor(1),)


def without(dims: Iterable[Dim], axes: Iterable[str]) -> tuple[Dim, ...]:
    """The dims with `axes` gathered."""
    gone = frozenset(axes)
    return tuple(tuple(Factor(f.size, tuple(a for a in f.axes if a not in gone)) for f in dim) for dim in dims)


def axes_of(dim: Iterable[Factor]) -> list[str]:
    """The axes that split a dim, outermost first."""
    return [axis for f in dim for axis in f.axes]


def require_axes(mesh: Mapping[str, int], axes: Iterable[str]) -> None:
    """Raises LayoutError for an axis that the mesh lacks."""
    for axis in axes:
        if axis not in mesh:
            raise LayoutError(f'a layout uses axis "{axis}", which the mesh lacks', help=nearest(axis, mesh))
