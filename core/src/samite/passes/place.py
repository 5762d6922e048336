"""place: every value gets a layout, and conflicts become explicit `dist.reshard`.

The user's layouts are constraints. The rest follows from them by rules, op by op, each op taking the plan that moves
least. Arguments without a constraint then take the layout that their users ask for, if the whole program moves no more
with it: so the second weight of an MLP is stored as the first one's split needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from samite.errors import LayoutError, SamiteError
from samite.ir.build import Builder, Value, rewrite
from samite.ir.graph import Argument, Graph, Node
from samite.ir.module import Module
from samite.layout import Layout, axes_of, plan, without
from samite.passes.traffic import itemsize
from samite.rules.binding import bind
from samite.rules.planning import OpPlan, plan_op, settle

__all__ = ["Place"]

ROUNDS = 3


class Place:
    name = "place"

    def run(self, module: Module) -> Module:
        """Arguments with a layout keep it; all others get one. Nothing that the function returns is owed."""
        mesh = module.mesh
        graph = module.graph
        best = _Placement(graph, mesh, [_given(a) for a in graph.arguments], {})
        for _ in range(ROUNDS):
            better = best.improved()
            if better is None or better.moved > best.moved:
                break
            best = better
        arguments = [a._replace(layout=str(layout)) for a, layout in zip(graph.arguments, best.layouts, strict=False)]
        returns = [str(layout) for layout in best.return_layouts()]
        return rewrite(module, lambda graph, build: best.write(build), arguments, returns)


def _given(argument: Argument) -> Layout | None:
    return Layout.parse(argument.layout) if argument.layout else None


@dataclass(slots=True)
class _Choice:
    """What `place` decided for one op."""

    plan: OpPlan
    settled: tuple[Layout, ...]


class _Placement:
    """One assignment of layouts to all values, made in one walk from the arguments' layouts."""

    def __init__(
        self, graph: Graph, mesh: dict[str, int], given: Sequence[Layout | None], wishes: dict[int, Layout]
    ) -> None:
        self.graph, self.mesh, self.given, self.wishes = graph, mesh, given, wishes
        self.users = graph.users()
        known = {a.name: g for a, g in zip(graph.arguments, given, strict=True) if g is not None}
        self.layouts: list[Layout] = [
            self._argument(a, g or known.get(a.owner)) for a, g in zip(graph.arguments, given, strict=True)
        ]
        self.choices: list[_Choice] = []
        self.producers = {r: index for index, node in enumerate(graph.nodes) for r in node.results}
        self.moved = 0
        self._resharded: set[tuple[int, Layout]] = set()
        for node in graph.nodes:
            self._place(node)
        for value, want in zip(graph.returns, self.return_layouts(), strict=True):
            self._pay(value, want)

    def _argument(self, argument: Argument, given: Layout | None) -> Layout:
        """`given` is its own layout, or that of the parameter whose state it is, if that has its shape."""
        if given is None or given.shape != argument.type.shape:
            given = Layout.replicated(argument.type.shape)
        return _interned(given.canonical(self.mesh))

    def _place(self, node: Node) -> None:
        haves = tuple(self.layouts[o] for o in node.operands)
        wish = tuple(self.wishes.get(r) for r in node.results)
        try:
            made = _plan(node, haves, wish, self.mesh)
        except SamiteError as error:
            error.where = error.where or node.source.line
            raise
        for operand, need in zip(node.operands, made.needs, strict=True):
            have = self.layouts[operand]
            if have is not need:
                if have.owed and need == settle(have):
                    self._settle_early(operand)
                self._pay(operand, need)
        # A partial value with several users is settled once, where it is made, or each of them would reduce it.
        settled = tuple(
            self._settled(r, layout) if layout.owed and len(self.users[r]) > 1 else layout
            for r, layout in zip(node.results, made.results, strict=True)
        )
        for layout, final, type in zip(made.results, settled, node.op.results, strict=True):
            if layout is not final:
                self.moved += plan(layout, final, self.mesh).elements * itemsize(type.dtype)
        self.layouts.extend(settled)
        self.choices.append(_Choice(made, settled))

    def _settled(self, value: int, layout: Layout) -> Layout:
        """With nothing owed: split as the users wish where that is cheaper than whole."""
        whole, wish = _interned(settle(layout)), self.wishes.get(value)
        if wish is None or wish.owed:
            return whole
        cheaper = plan(layout, wish, self.mesh).elements < plan(layout, whole, self.mesh).elements
        return wish if cheaper else whole

    def _settle_early(self, value: int) -> None:
        """Settle a partial value where it arises, not after the scalings and views that it went through on its way:
        the reduction is the same, and it can travel together with others."""
        if not self.layouts[value].owed or len(self.users[value]) > 1 or value not in self.producers:
            return
        index = self.producers[value]
        node, choice = self.graph.nodes[index], self.choices[index]
        owed = [o for o, need in zip(node.operands, choice.plan.needs, strict=True) if need.owed]
        if len(owed) == 1 and self.layouts[owed[0]].owed and self._no_larger(owed[0], value):
            have = tuple(_interned(settle(self.layouts[o])) for o in node.operands)
            made = _plan(node, have, (None,) * len(node.results), self.mesh)
            if made.needs == have and made.results == tuple(settle(r) for r in choice.plan.results):
                self._settle_early(owed[0])
                if self.layouts[owed[0]] == have[node.operands.index(owed[0])]:
                    self.choices[index] = _Choice(made, made.results)
                    for result, layout in zip(node.results, made.results, strict=True):
                        self.layouts[result] = layout
                    return
        elements = plan(self.layouts[value], settle(self.layouts[value]), self.mesh).elements
        self.moved += elements * itemsize(self.graph.types[value].dtype)
        self.layouts[value] = _interned(settle(self.layouts[value]))
        settled = tuple(self.layouts[r] for r in node.results)
        self.choices[index] = _Choice(choice.plan, settled)

    def _no_larger(self, value: int, than: int) -> bool:
        return prod(self.graph.types[value].shape) <= prod(self.graph.types[than].shape)

    def _pay(self, value: int, need: Layout) -> None:
        have = self.layouts[value]
        if have != need and (value, need) not in self._resharded:
            self._resharded.add((value, need))
            elements = plan(have, need, self.mesh).elements
            self.moved += elements * itemsize(self.graph.types[value].dtype)

    def return_layouts(self) -> list[Layout]:
        """A replaced argument's successor lies as the argument does; other results keep what they have, settled."""
        return [
            self.layouts[alias] if alias >= 0 else settle(self.layouts[value])
            for value, alias in zip(self.graph.returns, self.graph.aliases, strict=True)
        ]

    # ---- improvement: what the users of unsplit values ask for, from the end to the arguments ----------------------

    def improved(self) -> _Placement | None:
        """A placement in which unsplit values are made as their users need them; None if nobody asks."""
        demands: list[list[Layout]] = [[] for _ in self.graph.types]
        for value, want in zip(self.graph.returns, self.return_layouts(), strict=True):
            if want.axes:
                demands[value].append(want)
        wishes: dict[int, Layout] = {}
        for node, choice in zip(reversed(self.graph.nodes), reversed(self.choices), strict=True):
            wish: list[Layout | None] = []
            for result, layout in zip(node.results, choice.settled, strict=True):
                asked = _agreed(demands[result])
                if asked is not None and layout.axes and (asked == layout or not _same_split(asked, layout)):
                    asked = None
                if asked is not None:
                    wishes[result] = asked
                wish.append(asked)
            made = choice.plan
            if any(w is not None for w in wish):
                # Operands do not vote for axes that the wish lays out in another way than they do.
                moot = {
                    a for w, r in zip(wish, node.results, strict=True) if w and self.layouts[r].axes for a in w.axes
                }
                have = tuple(self._without(self.layouts[o], moot) for o in node.operands)
                made = _plan(node, have, tuple(wish), self.mesh)
            for operand, need in zip(node.operands, made.needs, strict=True):
                if need.axes and not need.owed:
                    demands[operand].append(need)
        given = self._asked_of_arguments(demands)
        if given == list(self.given) and wishes == self.wishes:
            return None
        return _Placement(self.graph, self.mesh, given, wishes)

    def _without(self, layout: Layout, axes: set[str]) -> Layout:
        if not axes:
            return layout
        return _interned(Layout(without(layout.dims, axes), layout.kind, layout.owed).canonical(self.mesh))

    def _asked_of_arguments(self, demands: list[list[Layout]]) -> list[Layout | None]:
        """Unconstrained arguments take what most users ask for. A constraint says which axes split a dim, not how: the
        weight of a fused qkv, three times as tall as its heads, may have each third split."""
        found = list(self.given)
        for index, (argument, given) in enumerate(zip(self.graph.arguments, self.given, strict=True)):
            others = (d for d in demands[index] if given is None or (d != given and _same_split(d, given)))
            asked = Counter(others).most_common(1)
            if asked and not argument.owner:
                found[index] = asked[0][0]
        return found

    # ---- the placed module ----------------------------------------------------------------------------------------

    def write(self, build: Builder) -> list[Value]:
        values: list[Value] = list(build.arguments)
        moved: dict[tuple[int, Layout], Value] = {}

        def reshard(value: Value, type: Any, src: Layout, dst: Layout, location: Any) -> Value:
            texts = {"src": str(src), "dst": str(dst)}
            return build.dist("dist.reshard", [value], [type], texts, location, [texts["dst"]])[0]

        def need(operand: int, layout: Layout, location: Any) -> Value:
            have = self.layouts[operand]
            if have == layout:
                return values[operand]
            if (operand, layout) not in moved:
                made = reshard(values[operand], self.graph.types[operand], have, layout, location)
                moved[operand, layout] = made
            return moved[operand, layout]

        for node, choice in zip(self.graph.nodes, self.choices, strict=True):
            at = node.location
            operands = [need(o, layout, at) for o, layout in zip(node.operands, choice.plan.needs, strict=True)]
            layouts = [str(layout) for layout in choice.plan.results]
            made = list(build.op(node.op, operands, node.op.results, at, layouts))
            for i, (layout, final) in enumerate(zip(choice.plan.results, choice.settled, strict=True)):
                if layout is not final:
                    made[i] = reshard(made[i], node.op.results[i], layout, final, at)
            values.extend(made)
        wanted = zip(self.graph.returns, self.return_layouts(), strict=True)
        return [need(value, layout, self._made_at(value)) for value, layout in wanted]

    def _made_at(self, value: int) -> Any:
        return self.graph.nodes[self.producers[value]].location if value in self.producers else None


_plans: dict[Any, OpPlan] = {}
_layouts: dict[Layout, Layout] = {}


def _interned(layout: Layout) -> Layout:
    """The one object of all equal layouts: thousands of values share a few, and most comparisons are of the same."""
    return _layouts.setdefault(layout, layout)


def _plan(node: Node, have: tuple[Layout, ...], wish: tuple[Layout | None, ...], mesh: dict[str, int]) -> OpPlan:
    key = (node.op, have, wish, tuple(mesh.items()))
    found = _plans.get(key)
    if found is None:
        try:
            made = plan_op(bind(node.op), have, mesh, wish)
            found = _plans[key] = replace(
                made, needs=tuple(map(_interned, made.needs)), results=tuple(map(_interned, made.results))
            )
        except LayoutError as error:
            raise LayoutError(f"{node.op}: {error.what}", where=node.source.line, help=error.help) from error
    return found


def _same_split(asked: Layout, given: Layout) -> bool:
    return [axes_of(d) for d in asked.dims] == [axes_of(d) for d in given.dims]


def _agreed(demands: list[Layout]) -> Layout | None:
    """The layout that all users ask for, if they agree."""
    return demands[0] if demands and all(d == demands[0] for d in demands) else None
