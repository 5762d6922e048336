"""What a plan may choose: which letters take which factors, and what operands may keep owing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from samite.layout import Dim, Factor, Layout, axes_of, canonical, regroup, without
from samite.rules.binding import Bound
from samite.rules.notation import Group

__all__ = ["Granted", "Owing", "grants", "owe_beside", "owed_choices", "split_window"]

_WISH = 1 << 30
"""The operand number of a wish: after all operands."""


class Granted(NamedTuple):
    """The factors of each letter that is split; no axis twice. `kind` is the reduction that these letters leave."""

    factors: Mapping[str, Dim]
    kind: str


class _Vote(NamedTuple):
    """`operand` has `letter` split so; the heaviest (lowest) weight is heard first."""

    weight: int
    operand: int
    letter: str
    factors: Dim


def grants(
    bound: Bound,
    have: Sequence[Layout],
    mesh: Mapping[str, int],
    wish: Sequence[Layout | None],
    *,
    binding: bool = False,
) -> Iterator[Granted]:
    """By the size of operands; then, if that leaves a vote unheard, once with each operand's votes first, and with
    those of the wishes if they are binding."""
    votes = sorted(_votes(bound, have, mesh, wish), key=lambda v: (v.weight, v.operand))
    yield _grant(bound, votes, mesh)
    axes = [axis for v in votes for axis in axes_of(v.factors)]
    if len({v.letter for v in votes}) == len(votes) and len(set(axes)) == len(axes):
        return
    for operand in sorted({v.operand for v in votes if binding or v.operand != _WISH}):
        yield _grant(bound, sorted(votes, key=lambda v: v.operand != operand), mesh)


def _votes(
    bound: Bound, have: Sequence[Layout], mesh: Mapping[str, int], wish: Sequence[Layout | None]
) -> Iterator[_Vote]:
    for i, (groups, layout) in enumerate(zip(bound.operands, have, strict=True)):
        yield from _ballots(bound, -prod(layout.shape), i, groups, layout, mesh)
    for groups, layout in zip(bound.results, wish, strict=False):
        if layout is not None:
            # A window that no operand splits would be cut only to fetch what was there.
            yield from (v for v in _ballots(bound, 1, _WISH, groups, layout, mesh) if v.letter not in bound.partners)


def _ballots(
    bound: Bound, weight: int, operand: int, groups: Sequence[Group], layout: Layout, mesh: Mapping[str, int]
) -> Iterator[_Vote]:
    for group, dim in zip(groups, layout.dims, strict=True):
        if not group or not axes_of(dim):
            continue
        parts = (dim,) if len(group) == 1 else regroup([dim], [bound.sizes[letter] for letter in group], mesh)[1]
        for letter, factors in zip(group, parts, strict=True):
            if letter in bound.splittable and axes_of(factors):
                yield _Vote(weight, operand, letter, canonical(factors, mesh))
        # A split that fits no letter of a compound may go to the minor one that can take it: columns of a fused qkv,
        # split in one piece, become the same split of q, k and v. It is heard late, and costs a reshard.
        left = tuple(axis for axis in axes_of(dim) if axis not in {a for f in parts for a in axes_of(f)})
        letter = next((x for x in reversed(group) if x in bound.splittable), "")
        if left and letter:
            yield _Vote(0, operand, letter, (Factor(bound.sizes[letter], left),))


def _grant(bound: Bound, votes: Sequence[_Vote], mesh: Mapping[str, int]) -> Granted:
    given: dict[str, Dim] = {}
    used: set[str] = set()
    kind = ""
    for vote in votes:
        factors = canonical(without([vote.factors], used)[0], mesh)
        together = (vote.letter, *bound.partners.get(vote.letter, ()))
        reduces = next((bound.reduced[x] for x in together if x in bound.reduced), "")
        if vote.letter in given or not axes_of(factors) or (reduces and kind and reduces != kind):
            continue
        if vote.letter in bound.plain and len(factors) > 1:
            continue
        if vote.letter in bound.partners:
            given |= split_window(bound, together, tuple(axes_of(factors)), mesh)
        else:
            given[vote.letter] = factors
        kind = kind or reduces
        used |= set(axes_of(factors))
    return Granted(given, kind)


def split_window(
    bound: Bound, letters: Sequence[str], axes: tuple[str, ...], mesh: Mapping[str, int]
) -> dict[str, Dim]:
    """The letters of a window, split by as many of the axes, from the outermost, as leave shards at multiples of their
    length."""
    while True:
        factors = {x: Factor(bound.sizes[x], axes) for x in letters}
        if all(_even(f, mesh) for f in factors.values()):
            return {x: (f,) for x, f in factors.items()}
        axes = axes[:-1]


def _even(f: Factor, mesh: Mapping[str, int]) -> bool:
    """Whether the shard of the n-th rank starts at n times its length: only the outermost axis may cut unevenly."""
    chunks = f.chunks(mesh)[1:]
    return all(chunks[i] == chunks[i + 1] * mesh[axis] for i, axis in enumerate(f.axes[1:]))


class Owing(NamedTuple):
    """The axes over which each operand owes `kind`, and the kind that results then owe over all of these."""

    axes: Sequence[frozenset[str]]
    kind: str
    passed: str


def owed_choices(bound: Bound, have: Sequence[Layout], granted: Granted, mesh: Mapping[str, int]) -> Iterator[Owing]:
    """What operands may keep owing: for every axis that no letter uses, one of the rule's operand sets, or nothing.

    The last one is nothing at all, beyond what a split sum asks for.
    """
    base: list[frozenset[str]] = [frozenset() for _ in have]
    for letter, factors in granted.factors.items():
        if bound.reduced.get(letter) == "sum":
            owe_beside(bound, base, letter, frozenset(axes_of(factors)))
    for kind, passed, sets in bound.passing:
        options = list(_options(bound, have, granted, mesh, kind, sets)) if granted.kind in ("", passed) else []
        if kind != "sum" and (any(base) or not options):
            continue
        for choice in product(*options):
            owed = list(base)
            for axis, roles in choice:
                owed = [o | {axis} if role in roles else o for o, role in zip(owed, bound.roles, strict=True)]
            yield Owing(owed, kind, passed)


def _options(
    bound: Bound,
    have: Sequence[Layout],
    granted: Granted,
    mesh: Mapping[str, int],
    kind: str,
    sets: Sequence[tuple[int, ...]],
) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """For each axis that operands owe `kind` over: the set that has most of them, or none."""
    used = {axis for factors in granted.factors.values() for axis in axes_of(factors)}
    for axis in mesh:
        holders = {
            role for role, layout in zip(bound.roles, have, strict=True) if axis in layout.owed and layout.kind == kind
        }
        fitting = [s for s in sets if holders & set(s)]
        if axis not in used and fitting:
            yield [(axis, max(fitting, key=lambda s: len(holders & set(s)))), (axis, ())]


def owe_beside(bound: Bound, owed: list[frozenset[str]], letter: str, axes: frozenset[str]) -> None:
    """A summed letter is split: operands of its linear set that lack it are added once, so they become owed."""
    holding = {r for r, groups in zip(bound.roles, bound.operands, strict=True) if any(letter in g for g in groups)}
    joint = next((s for s in bound.linear if set(s) & holding), ())
    for i, role in enumerate(bound.roles):
        if role in joint and role not in holding:
            owed[i] = owed[i] | axes
