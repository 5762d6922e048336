"""The normal form of a dim, by which index maps are compared.

Merging neighbours is not enough. Where ranks stay empty, a boundary between factors can lie at several places: over 3
ranks, (4:a)(2) and (2:a)(4) both are 0..3, 4..7, nothing; and of three factors the middle one may merge with either
neighbour but not with both. So factors are first cut as finely as they can be, then merged from the left, and what does
not merge takes as much as it can from an unsplit neighbour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from math import gcd, isqrt

from samite.layout.factor import Dim, Factor, merged

__all__ = ["canonical"]


def canonical(dim: Iterable[Factor], mesh: Mapping[str, int]) -> Dim:
    """The one form of all dims with this index map: the equality that decides whether to reshard."""
    cut: list[Factor] = []
    # An axis on a chunk of length 1 only says that its index 0 owns the element. Such axes commute with everything, so
    # they go last, in mesh order.
    owners: list[str] = []
    for f in dim:
        if f.size == 0:  # no elements: every index map is the empty one
            return (Factor(0),)
        lengths = f.chunks(mesh)
        cutting = sum(length > 1 for length in lengths[:-1])
        owners += f.axes[cutting:]
        cut.append(Factor(f.size, f.axes[:cutting]) if cutting < len(f.axes) else f)
    out = merged(cut, mesh) if len(cut) < 2 else _settle(merged(_shatter(cut, mesh), mesh), mesh)
    return merged((*out, Factor(1, tuple(axis for axis in mesh if axis in owners))), mesh) if owners else out


def _shatter(dim: Iterable[Factor], mesh: Mapping[str, int]) -> Iterator[Factor]:
    """The same index map in as many factors as can be."""
    for f in dim:
        lengths = f.chunks(mesh)
        start = 0
        for stop in range(1, len(lengths)):
            whole = gcd(*lengths[start : stop + 1])
            if whole == lengths[stop]:  # what is left of a chunk divides all before it: a factor of its own
                yield Factor(lengths[start] // whole, f.axes[start:stop])
                start = stop
        rest = gcd(*lengths[start:])
        yield Factor(lengths[start] // rest, f.axes[start:])
        yield Factor(rest)


def _settle(dim: Dim, mesh: Mapping[str, int]) -> Dim:
    """The same index map with every split factor as large as an unsplit one minor to it can make it."""
    out = list(dim)
    for i, (f, minor) in enumerate(pairwise(dim)):
        if f.axes and not minor.axes:
            lengths = [length * minor.size for length in f.chunks(mesh)]
            whole = gcd(*lengths)
            divisors = {d for k in range(1, isqrt(whole) + 1) if whole % k == 0 for d in (k, whole // k)}
            rest = min(d for d in divisors if Factor(lengths[0] // d, f.axes).chunks(mesh) == [n // d for n in lengths])
            out[i : i + 2] = Factor(lengths[0] // rest, f.axes), Factor(rest)
    return tuple(out)
