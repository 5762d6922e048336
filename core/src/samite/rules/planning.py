"""From operand layouts and a bound rule: what the operands must be, and what the results are.

Each letter takes the factors of one operand that splits it, and each axis serves one letter. Where operands disagree
the alternatives are priced by what their reshards move, plus what it costs to settle what the results owe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import NamedTuple

from samite.layout import Factor, Layout, axes_of, canonical, identity, plan, regroup, without
from samite.layout.factor import Dim
from samite.rules.binding import Bound
from samite.rules.language import Group

__all__ = ["Mask", "OpPlan", "plan_between", "plan_op", "settle"]

_WISH = 1 << 30


class Mask(NamedTuple):
    """Operand `operand` must hold `fill` where letter `letter` of its dim `dim` is padding."""

    operand: int
    dim: int
    letter: str
    fill: float | int | bool


@dataclass(frozen=True)
class OpPlan:
    """`needs`: layouts the operands must have; `results`: those the results get; `given`: the factors of each split
    letter; `masks`: paddings that would reach a reduction."""

    needs: tuple[Layout, ...]
    results: tuple[Layout, ...]
    given: Mapping[str, Dim]
    masks: tuple[Mask, ...] = ()
    kind: str = field(default="", compare=False)


class _Vote(NamedTuple):
    weight: int
    operand: int
    letter: str
    factors: Dim


def plan_op(
    bound: Bound, have: Sequence[Layout], mesh: Mapping[str, int], wish: Sequence[Layout | None] = ()
) -> OpPlan:
    """The cheapest plan; ties go to the one that splits most, then to the largest operand's layout.

    `have` are canonical layouts of the operands; `wish` are layouts that would suit the users of the results: they
    vote last, and only they can split a letter that no operand has.
    """
    return min(
        _plans(bound, have, mesh, wish),
        key=lambda made: (_cost(bound, have, made, mesh), sum(r.local_size(mesh) for r in made.results)),
    )


def plan_between(
    bound: Bound, needs: Sequence[Layout], results: Sequence[Layout], mesh: Mapping[str, int]
) -> OpPlan | None:
    """The plan that has exactly these layouts, or None if the rule has no such plan."""
    for made in _plans(bound, needs, mesh, results):
        if list(made.needs) == list(needs) and list(made.results) == list(results):
            return made
    return None


def _plans(
    bound: Bound, have: Sequence[Layout], mesh: Mapping[str, int], wish: Sequence[Layout | None]
) -> Iterator[OpPlan]:
    if bound.rule.view is not None:
        yield _plan_view(bound, have, mesh, wish)
        return
    for votes in _orders(_votes(bound, have, mesh, wish)):
        given, kind = _grant(bound, votes, mesh)
        for owed in _owed_choices(bound, have, given, kind, mesh):
            yield _assemble(bound, given, kind, owed, mesh)


def settle(layout: Layout) -> Layout:
    """The layout with nothing owed."""
    return Layout(layout.dims) if layout.owed else layout


def _plan_view(
    bound: Bound, have: Sequence[Layout], mesh: Mapping[str, int], wish: Sequence[Layout | None]
) -> OpPlan:
    assert bound.rule.view is not None
    source = have[0]
    sizes = bound.rule.view(bound.op)
    wanted = wish[0] if wish else None
    if not source.axes and wanted is not None and wanted.axes:  # a replicated operand can take the wish for free
        dims = regroup(wanted.dims, source.shape, mesh)[1]
        free = tuple(without([d], source.owed)[0] for d in dims)
        source = Layout(tuple(canonical(d, mesh) for d in free), source.kind, source.owed)
    need, out = regroup(source.dims, sizes, mesh)
    made = lambda dims: Layout(dims, source.kind, source.owed).canonical(mesh)  # noqa: E731
    return OpPlan((made(need),), (made(out),), {}, kind=source.kind)


def _votes(
    bound: Bound, have: Sequence[Layout], mesh: Mapping[str, int], wish: Sequence[Layout | None]
) -> list[_Vote]:
    votes: list[_Vote] = []

    def add(weight: int, operand: int, groups: Sequence[Group], layout: Layout) -> None:
        for group, dim in zip(groups, layout.dims, strict=True):
            if not axes_of(dim):
                continue
            parts = regroup([dim], [bound.sizes[letter] for letter in group], mesh)[1] if len(group) > 1 else (dim,)
            votes.extend(
                _Vote(weight, operand, letter, canonical(f, mesh))
                for letter, f in zip(group, parts, strict=len(group) > 0)
                if axes_of(f)
            )
            if len(group) > 1:  # a split that fits no letter of the dim may go to the minor one that can take it
                heard = {a for f in parts for a in axes_of(f)}
                rest = tuple(a for a in axes_of(dim) if a not in heard)
                letter = next((x for x in reversed(group) if x in bound.splittable), "")
                if rest and letter:
                    votes.append(_Vote(0, operand, letter, (Factor(bound.sizes[letter], rest),)))

    for i, (groups, layout) in enumerate(zip(bound.operands, have, strict=True)):
        add(-prod(layout.shape), i, groups, layout)
    for groups, layout in zip(bound.results, wish, strict=False):
        if layout is not None:
            add(1, _WISH, groups, layout)
    return [v for v in votes if v.letter in bound.splittable]


def _orders(votes: list[_Vote]) -> Iterator[list[_Vote]]:
    """By size; then, if that order leaves an operand's vote unheard, with each operand's votes first."""
    first = sorted(votes, key=lambda v: (v.weight, v.operand))
    yield first
    letters = {v.letter for v in votes}
    axes = [a for v in votes for a in axes_of(v.factors)]
    if len(letters) == len(votes) and len(set(axes)) == len(axes):
        return
    for operand in sorted({v.operand for v in votes if v.operand != _WISH}):
        yield sorted(first, key=lambda v: v.operand != operand)


def _grant(bound: Bound, votes: list[_Vote], mesh: Mapping[str, int]) -> tuple[dict[str, Dim], str]:
    """(the factors of each letter that gets split, the reduction that the split letters leave)."""
    given: dict[str, Dim] = {}
    used: set[str] = set()
    kind = ""
    for vote in votes:
        factors = canonical(without([vote.factors], used)[0], mesh)
        reduces = bound.reduced.get(vote.letter, "")
        if vote.letter in given or not axes_of(factors) or (reduces and kind and reduces != kind):
            continue
        if vote.letter in bound.plain and len(factors) > 1:
            continue
        kind = kind or reduces
        given[vote.letter] = factors
        used |= set(axes_of(factors))
    return given, kind


def _owed_choices(
    bound: Bound, have: Sequence[Layout], given: Mapping[str, Dim], kind: str, mesh: Mapping[str, int]
) -> Iterator[list[frozenset[str]]]:
    """What each operand may keep owing: for every axis, nothing or one of the rule's linear sets."""
    used = {a for factors in given.values() for a in axes_of(factors)}
    base: list[frozenset[str]] = [frozenset() for _ in have]
    for letter, factors in given.items():
        if bound.reduced.get(letter) == "sum":
            _owe_beside(bound, base, letter, frozenset(axes_of(factors)))
    options: list[list[tuple[str, tuple[int, ...]]]] = []
    for axis in mesh:
        holders = {bound.roles[i] for i, h in enumerate(have) if axis in h.owed and h.kind == "sum"}
        if axis in used or not holders or kind not in ("", "sum"):
            continue
        sets = [s for s in bound.linear if holders & set(s)]
        if sets:
            options.append([(axis, max(sets, key=lambda s: len(holders & set(s)))), (axis, ())])
    for choice in product(*options):
        owed = list(base)
        for axis, roles in choice:
            for i, role in enumerate(bound.roles):
                if role in roles:
                    owed[i] = owed[i] | {axis}
        yield owed


def _owe_beside(bound: Bound, owed: list[frozenset[str]], letter: str, axes: frozenset[str]) -> None:
    """A summed letter is split: operands of its linear set that lack it are added once, so they become owed."""
    holding = {role for role, groups in zip(bound.roles, bound.operands, strict=True) if any(letter in g for g in groups)}
    joint = next((s for s in bound.linear if set(s) & holding), ())
    for i, role in enumerate(bound.roles):
        if role in joint and role not in holding:
            owed[i] = owed[i] | axes


def _assemble(
    bound: Bound, given: Mapping[str, Dim], kind: str, owed: list[frozenset[str]], mesh: Mapping[str, int]
) -> OpPlan:
    def layout(groups: Sequence[Group], owes: frozenset[str], reduces: str) -> Layout:
        dims = tuple(
            canonical([f for letter in g for f in given.get(letter, (Factor(bound.sizes[letter]),))], mesh)
            for g in groups
        )
        return Layout(dims, reduces if owes else "", owes)

    needs = tuple(layout(groups, o, "sum") for groups, o in zip(bound.operands, owed, strict=True))
    passed = frozenset(a for o in owed for a in o)
    results: list[Layout] = []
    for groups in bound.results:
        inside = {letter for g in groups for letter in g}
        lost = {a for letter in set(given) & set(bound.reduced) - inside for a in axes_of(given[letter])}
        results.append(layout(groups, frozenset(lost) | passed, kind or "sum"))
    return OpPlan(needs, tuple(results), given, _masks(bound, given, mesh), kind)


def _masks(bound: Bound, given: Mapping[str, Dim], mesh: Mapping[str, int]) -> tuple[Mask, ...]:
    found: list[Mask] = []
    for i, groups in enumerate(bound.operands):
        for dim, group in enumerate(groups):
            for letter in group:
                kind = bound.reduced.get(letter, "")
                if not kind or letter in bound.indexed or letter not in given:
                    continue
                if any(f.padded(mesh) for f in given[letter]):
                    found.append(Mask(i, dim, letter, identity(kind, bound.op.operands[i].dtype)))
    return tuple(found)


def _cost(bound: Bound, have: Sequence[Layout], made: OpPlan, mesh: Mapping[str, int]) -> float:
    """Elements that the operands' reshards move, and those it will take to settle what the results owe."""
    moved = 0.0
    for before, after in zip(have, made.needs, strict=True):
        if before != after:
            moved += plan(before, after, mesh).elements
            if after.owed - before.owed:
                moved += _OWE_PASS * after.local_size(mesh)
    return moved + sum(plan(r, settle(r), mesh).elements for r in made.results if r.owed)


_OWE_PASS = 1 / 32
"""A pass over local memory, next to moving as much over a link: enough to prefer an operand that need not become owed."""
