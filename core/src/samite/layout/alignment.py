"""Alignment: two index maps of one dim, cut into factors of the same sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from samite.layout.factor import Dim, Factor, axes_of, split, without
from samite.layout.normal_form import canonical

__all__ = ["Aligned", "align"]


class Aligned(NamedTuple):
    """`src` and `dst` with equal factor sizes; `gathered` are the axes that `src` had to lose for it."""

    src: Dim
    dst: Dim
    gathered: frozenset[str]


def align(src: Dim, dst: Dim, mesh: Mapping[str, int]) -> Aligned:
    """Both canonical dims cut at each other's factor boundaries, after gathering the fewest innermost axes of `src`."""
    axes = axes_of(src)
    for kept in range(len(axes), -1, -1):
        outer = canonical(without((src,), axes[kept:])[0], mesh) if kept < len(axes) else src
        fine = _refine(outer, _cuts(dst), mesh)
        target = fine and _refine(dst, _cuts(fine), mesh)
        if fine and target and (pair := _pair_owners(fine, target)):
            return Aligned(*pair, frozenset(axes[kept:]))
    raise AssertionError(f"{dst} does not refine {src}")  # an unsplit dim can be cut anywhere


def _cuts(dim: Dim) -> list[int]:
    """The products of the factors minor to each boundary."""
    return [prod(f.size for f in dim[i:]) for i in range(1, len(dim))]


def _refine(dim: Dim, cuts: Sequence[int], mesh: Mapping[str, int]) -> Dim | None:
    """The dim with a factor boundary at each cut that falls inside a factor, or None if a factor does not split so."""
    fine: list[Factor] = []
    done = 1  # the product of `fine`
    for f in reversed(dim):
        while minors := [c // done for c in cuts if c % done == 0 and f.size % (c // done) == 0 and c // done > 1]:
            if min(minors) == f.size:
                break
            pair = split(f, f.size // min(minors), mesh)
            if pair is None:
                return None
            f, minor = pair
            fine.append(minor)
            done *= minor.size
        fine.append(f)
        done *= f.size
    return tuple(reversed(fine))


def _pair_owners(x: Dim, y: Dim) -> tuple[Dim, Dim] | None:
    """Both with the same sizes, an unsplit factor of size 1 put in where only one has any; None if they differ."""
    left, right = list(x), list(y)
    out: tuple[list[Factor], list[Factor]] = ([], [])
    while left or right:
        if not (left and right and left[0].size == right[0].size):
            if left and left[0].size == 1:
                right.insert(0, Factor(1))
            elif right and right[0].size == 1:
                left.insert(0, Factor(1))
            else:
                return None
        out[0].append(left.pop(0))
        out[1].append(right.pop(0))
    return tuple(out[0]), tuple(out[1])
