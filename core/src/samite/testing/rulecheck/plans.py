"""Every plan of a rule: all that the axes of a mesh can serve, in every combination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, product
from typing import NamedTuple

from samite.ir.context import TensorType
from samite.layout import Dim, Layout, axes_of, canonical, without
from samite.mesh import Mesh
from samite.rules.binding import Bound
from samite.rules.choices import Granted, Owing, owe_beside, split_window
from samite.rules.planning import OpPlan, assemble, plan_between, plan_op
from samite.testing.rulecheck.placements import kinds_of, layouts_of

__all__ = ["plans_of"]

_Given = dict[str, Dim]


class _Owed(NamedTuple):
    """A set of operands that owe `kind` together, so that results owe `passed`."""

    kind: str
    passed: str
    roles: tuple[int, ...]


def plans_of(bound: Bound, mesh: Mesh) -> Iterator[OpPlan]:
    """The plans that `plan_between` knows, for operands that can owe so, none twice.

    Each axis splits a letter, from its start or within (in its smallest factor), or passes on what a set of operands
    owes, or serves nothing; axes of one letter come in every order.

    Operands in any combination of layouts are brought to one of these plans (or to one that splits a letter in factors
    of other sizes), and so are the wishes of users.
    """
    found = _of_view(bound, mesh) if bound.rule.view is not None else _of_letters(bound, mesh)
    seen: set[tuple[tuple[Layout, ...], tuple[Layout, ...]]] = set()
    for made in found:
        key = made.needs, made.results
        possible = all(
            not need.kind or need.kind in kinds_of(type.dtype)
            for need, type in zip(made.needs, bound.op.operands, strict=True)
        )
        if possible and key not in seen and plan_between(bound, *key, mesh) is not None:
            seen.add(key)
            yield made


def _of_view(bound: Bound, mesh: Mesh) -> Iterator[OpPlan]:
    [operand], [result] = bound.op.operands, bound.op.results
    for have in layouts_of(operand, mesh):
        wishes = () if have.axes else layouts_of(result, mesh, owed=False)[1:]  # what is split is not asked
        for wish in (None, *wishes):
            yield plan_op(bound, (have,), mesh, (wish,))


def _of_letters(bound: Bound, mesh: Mesh) -> Iterator[OpPlan]:
    letters = sorted(bound.splittable & bound.sizes.keys())
    owed = [_Owed(kind, passed, roles) for kind, passed, sets in bound.passing for roles in sets]
    for given in _splits(bound, letters, frozenset(mesh), mesh):
        kinds = {bound.reduced[letter] for letter in given if letter in bound.reduced}
        if len(kinds) > 1:
            continue
        free = set(mesh) - {axis for dim in given.values() for axis in axes_of(dim)}
        for chosen in product([None, *owed], repeat=len(free)):
            served = {axis: use for axis, use in zip(sorted(free), chosen, strict=True) if use is not None}
            owing = _owing(bound, given, "".join(kinds), served)
            if owing is not None:
                yield assemble(bound, Granted(given, "".join(kinds)), owing, mesh)


def _splits(bound: Bound, letters: Sequence[str], free: frozenset[str], mesh: Mesh) -> Iterator[_Given]:
    """Every way to split some of the letters over some of the axes. The letters of a window are split together."""
    if not letters:
        yield {}
        return
    letter, rest = letters[0], letters[1:]
    yield from _splits(bound, rest, free, mesh)
    partners = bound.partners.get(letter, ())
    rest = [x for x in rest if x not in partners]
    for factors in _factors(bound.sizes[letter], mesh):
        axes = frozenset(axes_of(factors))
        if not axes or not axes <= free or (letter in bound.plain and len(factors) > 1):
            continue
        given: _Given = {letter: factors}
        if letter in bound.partners:
            given = split_window(bound, (letter, *partners), tuple(axes_of(factors)), mesh)
            if not axes_of(given[letter]):
                continue
        for others in _splits(bound, rest, free - axes, mesh):
            yield given | others


@cache
def _factors(size: int, mesh: Mesh) -> tuple[Dim, ...]:
    """The canonical dims of `layouts_of`, and what is left of them where some of their axes serve something else."""
    whole = [layout.dims for layout in layouts_of(TensorType((size,), "float32"), mesh, owed=False)]
    subsets = [gone for n in range(len(mesh)) for gone in combinations(mesh, n)]
    return tuple(dict.fromkeys(canonical(without(dims, gone)[0], mesh) for dims in whole for gone in subsets))


def _owing(bound: Bound, given: _Given, kind: str, served: Mapping[str, _Owed]) -> Owing | None:
    """What operands owe if letters are split so, which leaves `kind`, and axes pass on so. None if these do not
    commute, as sums and maxima do not."""
    owes: list[frozenset[str]] = [frozenset() for _ in bound.operands]
    for letter, factors in given.items():
        if bound.reduced.get(letter) == "sum":
            owe_beside(bound, owes, letter, frozenset(axes_of(factors)))
    passing = {(owed.kind, owed.passed) for owed in served.values()}
    if len(passing) > 1:
        return None
    owed_kind, passed = passing.pop() if passing else ("sum", "sum")
    if served and (kind not in ("", passed) or (owed_kind != "sum" and any(owes))):
        return None
    for axis, owed in served.items():
        owes = [o | {axis} if role in owed.roles else o for o, role in zip(owes, bound.roles, strict=True)]
    return Owing(owes, owed_kind, passed)
