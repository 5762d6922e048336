"""From operand layouts and a bound rule: what the operands must be, and what the results are.

Each letter takes the factors of one operand that splits it, and each axis serves one letter. Where operands disagree
the alternatives are priced by what their reshards move, plus what it costs to settle what the results owe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from samite.layout import Dim, Factor, Layout, axes_of, canonical, identity, plan, refuse_pinned, regroup, without
from samite.rules.binding import Bound
from samite.rules.choices import Granted, Owing, grants, owed_choices
from samite.rules.notation import Group

__all__ = ["Mask", "OpPlan", "assemble", "plan_between", "plan_op", "settle"]


class Mask(NamedTuple):
    """Operand `operand` must hold `fill` where its dim `dim` is padding."""

    operand: int
    dim: int
    fill: float | int | bool


@dataclass(frozen=True)
class OpPlan:
    """`needs`: layouts the operands must have; `results`: those the results get; `given`: the factors of each split
    letter; `masks`: paddings that would reach a reduction, or that the kernel would fail on."""

    needs: tuple[Layout, ...]
    results: tuple[Layout, ...]
    given: Mapping[str, Dim]
    masks: tuple[Mask, ...] = ()


def plan_op(
    bound: Bound, have: Sequence[Layout], mesh: Mapping[str, int], wish: Sequence[Layout | None] = ()
) -> OpPlan:
    """The cheapest plan; ties go to the one that splits most, then to the largest operand's layout.

    `have` are canonical layouts of the operands; `wish` are layouts that would suit the users of the results: they
    vote last, and only they can split a letter that no operand has. Raises LayoutError if one is pinned.
    """
    return min(
        _plans(bound, have, mesh, wish),
        key=lambda made: (_cost(have, made, mesh), sum(r.local_size(mesh) for r in made.results)),
    )


def plan_between(
    bound: Bound, needs: Sequence[Layout], results: Sequence[Layout], mesh: Mapping[str, int]
) -> OpPlan | None:
    """The plan that has exactly these layouts, or None if the rule has no such plan."""
    # What an axis splits may show in the results alone: of a compound in which it has a factor of 1, an operand does
    # not tell the letter.
    for made in _plans(bound, needs, mesh, results, binding=True):
        if list(made.needs) == list(needs) and list(made.results) == list(results):
            return made
    return None


def settle(layout: Layout) -> Layout:
    """The layout with nothing owed."""
    return replace(layout, kind="", owed=frozenset()) if layout.owed else layout


def _plans(
    bound: Bound,
    have: Sequence[Layout],
    mesh: Mapping[str, int],
    wish: Sequence[Layout | None],
    *,
    binding: bool = False,
) -> Iterator[OpPlan]:
    refuse_pinned((*have, *wish), "an op has")
    if bound.rule.view is not None:
        yield from _view_plans(bound.rule.view(bound.op), have[0], mesh, wish[0] if wish else None)
        return
    for granted in grants(bound, have, mesh, wish, binding=binding):
        for owing in owed_choices(bound, have, granted, mesh):
            yield assemble(bound, granted, owing, mesh)


def _view_plans(
    sizes: tuple[int, ...], source: Layout, mesh: Mapping[str, int], wish: Layout | None
) -> Iterator[OpPlan]:
    if not source.axes and wish is not None and wish.axes:  # a replicated operand can take the wish for free
        dims = without(regroup(wish.dims, source.shape, mesh)[1], source.owed)
        source = Layout(tuple(canonical(dim, mesh) for dim in dims), source.kind, source.owed)
    if not prod(sizes):  # dims of no elements regroup to any others, and moving them costs nothing
        source = Layout.replicated(source.shape)
    need, result = regroup(source.dims, sizes, mesh)

    def made(need: Sequence[Dim], result: Sequence[Dim]) -> OpPlan:
        layouts = [Layout(tuple(dims), source.kind, source.owed).canonical(mesh) for dims in (need, result)]
        return OpPlan((layouts[0],), (layouts[1],), {})

    yield made(need, result)
    moved = _with_lost_axes(source, need, result, mesh)
    if moved is not None:
        kept, before = regroup(moved, source.shape, mesh)
        if kept == tuple(moved):
            yield made(before, moved)


def _with_lost_axes(
    source: Layout, need: Sequence[Dim], result: Sequence[Dim], mesh: Mapping[str, int]
) -> list[Dim] | None:
    """The result of a view with the axes that it makes the operand lose on a later dim of those that the axis' dim
    becomes, where they split one evenly: a fused qkv viewed as (3, heads, width) can be split by heads. None if no axis
    is lost, or one finds no place."""
    found = list(result)
    ends = [prod(f.size for dim in found[: i + 1] for f in dim) for i in range(len(found))]
    for i, (before, after) in enumerate(zip(source.dims, need, strict=True)):
        start = prod(source.shape[:i])
        inside = [j for j, end in enumerate(ends) if start < end <= start * source.shape[i]]
        for axis in axes_of(before):
            if axis in axes_of(after):
                continue
            fits = (j for j in inside if not axes_of(found[j]) and ends[j] and found[j][0].size % mesh[axis] == 0)
            place = next((j for j in fits if len(found[j]) == 1), None)
            if place is None:
                return None
            found[place] = (Factor(found[place][0].size, (axis,)),)
    return found if found != list(result) else None


def assemble(bound: Bound, granted: Granted, owing: Owing, mesh: Mapping[str, int]) -> OpPlan:
    """The plan in which letters are split so and operands owe so."""
    given, kind = granted

    def layout(groups: Sequence[Group], owes: frozenset[str], reduces: str) -> Layout:
        dims = tuple(
            canonical([f for letter in g for f in given.get(letter, (Factor(bound.sizes[letter]),))], mesh)
            for g in groups
        )
        return Layout(dims, reduces if owes else "", owes)

    needs = tuple(layout(groups, o, owing.kind) for groups, o in zip(bound.operands, owing.axes, strict=True))
    passed = frozenset(axis for o in owing.axes for axis in o)
    results: list[Layout] = []
    for groups, type in zip(bound.results, bound.op.results, strict=True):
        lost = {axis for letter in _lost(bound, given, groups) for axis in axes_of(given[letter])}
        owes = frozenset(lost) | passed if type.dtype != "none" else frozenset[str]()
        results.append(layout(groups, owes, kind or owing.passed))
    return OpPlan(needs, tuple(results), given, tuple(_masks(bound, given, mesh)))


def _lost(bound: Bound, given: Mapping[str, Dim], result: Sequence[Group]) -> list[str]:
    """The split letters that are reduced in a result."""
    inside = {letter for group in result for letter in group}
    inside |= {partner for letter, partners in bound.partners.items() if letter in inside for partner in partners}
    return [letter for letter in given if letter in bound.reduced and letter not in inside]


def _masks(bound: Bound, given: Mapping[str, Dim], mesh: Mapping[str, int]) -> Iterator[Mask]:
    padded = {letter for letter, factors in given.items() if any(f.padded(mesh) for f in factors)}
    if not padded:
        return
    for i, (groups, role, type) in enumerate(zip(bound.operands, bound.roles, bound.op.operands, strict=True)):
        needed = bound.rule.padding.get(role)
        if isinstance(needed, int) and not type.dtype.startswith(("int", "uint")):
            needed = None
        for dim, group in enumerate(groups):
            fill = _neutral(bound, padded & set(group)) if needed is None else needed
            if padded & set(group) and fill is not None:
                yield Mask(i, dim, fill)


def _neutral(bound: Bound, letters: set[str]) -> float | int | bool | None:
    """What changes no result that one of the letters is reduced in; None if there is no such result.

    The dtype is the result's: `any` and `all` of numbers reduce bools.
    """
    for groups, type in zip(bound.results, bound.op.results, strict=True):
        for letter in sorted(letters - bound.indexed - {x for g in groups for x in g}):
            if letter in bound.reduced and type.dtype != "none":
                return identity(bound.reduced[letter], type.dtype)
    return None


def _cost(have: Sequence[Layout], made: OpPlan, mesh: Mapping[str, int]) -> float:
    """Elements that the operands' reshards move, and those it will take to settle what the results owe."""
    moved = 0.0
    for before, after in zip(have, made.needs, strict=True):
        if before != after:
            moved += plan(before, after, mesh).elements
            if after.owed - before.owed:
                moved += _OWE_PASS * after.local_size(mesh)
    return moved + sum(plan(r, settle(r), mesh).elements for r in made.results if r.owed)


_OWE_PASS = 1 / 32
"""A pass over local memory, next to moving as much over a link: enough to prefer operands that need not become owed."""
