"""All that an op can do with one more mesh axis: the choices of a search over layouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from samite.layout import Dim, Factor, Layout, axes_of, canonical, regroup, without
from samite.rules.binding import Bound
from samite.rules.choices import Granted, Owing, owe_beside, split_window
from samite.rules.planning import OpPlan, assemble, plan_between

__all__ = ["placings", "strategies"]

Mesh = Mapping[str, int]


def strategies(
    bound: Bound, base: OpPlan, axis: str, mesh: Mesh, offered: Sequence[Iterable[Layout]]
) -> Iterator[OpPlan]:
    """`base`, which does not use `axis`, and every plan that uses it for one thing beside: for a letter, or to pass on
    what operands owe over it.

    `offered` are layouts of each operand, then of each result, that neighbours can give or take. They say which factor
    of a dim may be split where that is not its outermost (the time of a flattened batch and time), and which reductions
    may be owed. Each plan is one that `plan_between` finds again.
    """
    kinds = {layout.kind for layouts in offered for layout in layouts if axis in layout.owed} | {"sum"}
    if bound.rule.view is not None:
        found = _of_view(bound.rule.view(bound.op), base, axis, mesh, offered, kinds)
    else:
        found = _of_letters(bound, base, axis, mesh, offered, kinds)
    seen = {(base.needs, base.results)}
    yield base
    for made in found:
        key = made.needs, made.results
        if key not in seen and plan_between(bound, made.needs, made.results, mesh) is not None:
            seen.add(key)
            yield made


def placings(dim: Dim, axis: str, mesh: Mesh) -> Iterator[Dim]:
    """The canonical dims that have `axis` in one more place, in mesh order beside the axes that are there, and leave no
    rank without elements."""
    order = list(mesh)
    for i, f in enumerate(dim):
        axes = tuple(sorted((*f.axes, axis), key=order.index))
        lengths = Factor(f.size, axes).chunks(mesh)
        cuts = zip(lengths, lengths[1:], axes, strict=False)
        if all(-(-before // after) == mesh[a] for before, after, a in cuts if after):
            yield canonical((*dim[:i], Factor(f.size, axes), *dim[i + 1 :]), mesh)


def _of_letters(
    bound: Bound, base: OpPlan, axis: str, mesh: Mesh, offered: Sequence[Iterable[Layout]], kinds: set[str]
) -> Iterator[OpPlan]:
    kind = next((bound.reduced[x] for x in base.given if x in bound.reduced), "")
    passing = _passing(bound, base)
    for letter, dim in _splits(bound, base, axis, mesh, offered):
        together = (letter, *bound.partners.get(letter, ()))
        reduces = next((bound.reduced[x] for x in together if x in bound.reduced), "")
        if (reduces and kind and reduces != kind) or (letter in bound.plain and len(dim) > 1):
            continue
        added: Mapping[str, Dim] = {letter: dim}
        if letter in bound.partners:
            added = split_window(bound, together, tuple(axes_of(dim)), mesh)
            if axis not in axes_of(added[letter]):
                continue
        given = {**base.given, **added}
        if any(passing.axes) and (kind or reduces) not in ("", passing.passed):
            continue  # partial sums and partial maxima do not commute
        owed = [beside | passed for beside, passed in zip(_beside(bound, given), passing.axes, strict=True)]
        yield assemble(bound, Granted(given, kind or reduces), passing._replace(axes=owed), mesh)
    for owed_kind, passed, sets in bound.passing:
        alike = not any(passing.axes) or (passing.kind, passing.passed) == (owed_kind, passed)
        if owed_kind not in kinds or not alike or kind not in ("", passed) or (owed_kind != "sum" and kind == "sum"):
            continue
        for roles in sets:
            owed = [
                beside | held | ({axis} if role in roles else set())
                for beside, held, role in zip(_beside(bound, base.given), passing.axes, bound.roles, strict=True)
            ]
            yield assemble(bound, Granted(base.given, kind), Owing(owed, owed_kind, passed), mesh)


def _beside(bound: Bound, given: Mapping[str, Dim]) -> list[frozenset[str]]:
    """What operands owe because a sum that they are added to is split."""
    owed: list[frozenset[str]] = [frozenset() for _ in bound.operands]
    for letter, dim in given.items():
        if bound.reduced.get(letter) == "sum":
            owe_beside(bound, owed, letter, frozenset(axes_of(dim)))
    return owed


def _passing(bound: Bound, base: OpPlan) -> Owing:
    """What operands of a plan owe over axes that no letter uses."""
    used = frozenset(axis for dim in base.given.values() for axis in axes_of(dim))
    owed = [need.owed - used for need in base.needs]
    kind = next((need.kind for need in base.needs if need.owed - used), "sum")
    passed = next((result.kind for result in base.results if result.owed), "sum") if any(owed) else "sum"
    return Owing(owed, kind, passed)


def _splits(
    bound: Bound, base: OpPlan, axis: str, mesh: Mesh, offered: Sequence[Iterable[Layout]]
) -> Iterator[tuple[str, Dim]]:
    """(letter, its factors with `axis`)."""
    for letter in sorted(bound.splittable & bound.sizes.keys()):  # a rule may name letters that a call lacks
        before = base.given.get(letter, (Factor(bound.sizes[letter]),))
        for dim in placings(before, axis, mesh):
            yield letter, dim
    for groups, layouts in zip((*bound.operands, *bound.results), offered, strict=True):
        for layout in layouts:
            for group, dim in zip(groups, layout.dims, strict=True):
                if not group or axis not in axes_of(dim):
                    continue
                parts = (dim,) if len(group) == 1 else regroup([dim], [bound.sizes[x] for x in group], mesh)[1]
                for letter, part in zip(group, parts, strict=True):
                    before = base.given.get(letter, (Factor(bound.sizes[letter]),))
                    if letter in bound.splittable and axis in axes_of(part) and _less(part, axis, mesh) == before:
                        yield letter, canonical(part, mesh)


def _less(dim: Dim, axis: str, mesh: Mesh) -> Dim:
    return canonical(without([dim], (axis,))[0], mesh)


def _of_view(
    sizes: tuple[int, ...],
    base: OpPlan,
    axis: str,
    mesh: Mesh,
    offered: Sequence[Iterable[Layout]],
    kinds: set[str],
) -> Iterator[OpPlan]:
    need, result = base.needs[0], base.results[0]
    sources = [layout.dims for layout in offered[0] if axis in layout.axes]
    targets = [layout.dims for layout in offered[1] if axis in layout.axes]
    for layout, found in ((need, sources), (result, targets)):
        found += [
            (*layout.dims[:i], d, *layout.dims[i + 1 :])
            for i, f in enumerate(layout.dims)
            for d in placings(f, axis, mesh)
        ]
    pairs = [regroup(source, sizes, mesh) for source in sources]
    pairs += [regroup(target, need.shape, mesh)[::-1] for target in targets]
    for before, after in pairs:
        if need.owed & {a for dim in (*before, *after) for a in axes_of(dim)}:
            continue
        made = [Layout(dims, need.kind, need.owed).canonical(mesh) for dims in (before, after)]
        rest = [Layout(without(m.dims, (axis,)), m.kind, m.owed).canonical(mesh) for m in made]
        if axis in made[0].axes and axis in made[1].axes and rest == [need, result]:
            yield OpPlan((made[0],), (made[1],), {})
    for kind in sorted(kinds):
        if need.kind in ("", kind):
            owing = [Layout(layout.dims, kind, layout.owed | {axis}) for layout in (need, result)]
            yield OpPlan((owing[0],), (owing[1],), {})
