"""One assignment of layouts to all values of a function, made in one walk from the arguments' layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from samite.errors import SamiteError
from samite.ir.graph import Argument, Graph, Node
from samite.layout import Layout, plan, without
from samite.passes.placement.plans import interned, plan_node
from samite.passes.traffic import itemsize
from samite.rules.planning import OpPlan, settle

__all__ = ["Choice", "Placement", "settled_over", "timeless"]


@dataclass(slots=True)
class Choice:
    """What was decided for one op: its plan, and its results' layouts after what is settled where they are made."""

    plan: OpPlan
    settled: tuple[Layout, ...]


class Placement:
    """`layouts` of all values, `choices` for all nodes, and the bytes `moved` that a rank receives with them.

    `given` are the arguments' layouts as far as they are known; of the others state lies as its owner, the rest is
    replicated. `wishes` are layouts that would suit all users of a value; `results` are as `Place` takes them, and so
    is `time`: what ranks owe over these axes is settled where it arises, and nothing crosses the function's border
    split over them.
    """

    def __init__(
        self,
        graph: Graph,
        mesh: dict[str, int],
        given: Sequence[Layout | None],
        wishes: dict[int, Layout],
        results: Sequence[Layout | None] | None = None,
        time: frozenset[str] = frozenset(),
    ) -> None:
        self.graph, self.mesh, self.given, self.wishes, self.results = graph, mesh, given, wishes, results
        self.time = time
        self.users = graph.users()
        known = {a.name: g for a, g in zip(graph.arguments, given, strict=True) if g is not None}
        self.layouts: list[Layout] = [
            self._argument(a, g or known.get(a.owner)) for a, g in zip(graph.arguments, given, strict=True)
        ]
        self.choices: list[Choice] = []
        self.producers = {r: index for index, node in enumerate(graph.nodes) for r in node.results}
        self.moved = 0
        self._resharded: set[tuple[int, Layout]] = set()
        for node in graph.nodes:
            self._place(node)
        for value, want in zip(graph.returns, self.return_layouts(), strict=True):
            self._pay(value, want)

    def copied_for(self, value: int, node: Node) -> str:
        """Which of several copies of a value in one layout a node uses: there is one."""
        return ""

    def _argument(self, argument: Argument, given: Layout | None) -> Layout:
        """`given` is its own layout, or that of the parameter whose state it is, if that has its shape."""
        if given is None or given.shape != argument.type.shape:
            given = Layout.replicated(argument.type.shape)
        return interned(given.canonical(self.mesh))

    def _place(self, node: Node) -> None:
        haves = tuple(self.layouts[o] for o in node.operands)
        wish = tuple(self.wishes.get(r) for r in node.results)
        try:
            made = self._planned(node, haves, wish)
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
            self._settled(r, layout) if layout.owed and len(self.users[r]) > 1 else settled_over(layout, self.time)
            for r, layout in zip(node.results, made.results, strict=True)
        )
        for layout, final, type in zip(made.results, settled, node.op.results, strict=True):
            if layout is not final:
                self.moved += plan(layout, final, self.mesh).elements * itemsize(type.dtype)
        self.layouts.extend(settled)
        self.choices.append(Choice(made, settled))

    def _planned(self, node: Node, have: tuple[Layout, ...], wish: tuple[Layout | None, ...]) -> OpPlan:
        if not node.op.regions:
            return plan_node(node, have, wish, self.mesh)
        from samite.passes.placement.regions import plan_regions  # which places functions, as this does

        made = plan_regions(node, have, self.mesh)
        self.moved += made.moved
        return made

    def _settled(self, value: int, layout: Layout) -> Layout:
        """With nothing owed: split as the users wish where that is cheaper than whole."""
        whole, wish = interned(settle(layout)), self.wishes.get(value)
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
            have = tuple(interned(settle(self.layouts[o])) for o in node.operands)
            made = plan_node(node, have, (None,) * len(node.results), self.mesh)
            if made.needs == have and made.results == tuple(settle(r) for r in choice.plan.results):
                self._settle_early(owed[0])
                if self.layouts[owed[0]] == have[node.operands.index(owed[0])]:
                    self.choices[index] = Choice(made, made.results)
                    for result, layout in zip(node.results, made.results, strict=True):
                        self.layouts[result] = layout
                    return
        elements = plan(self.layouts[value], settle(self.layouts[value]), self.mesh).elements
        self.moved += elements * itemsize(self.graph.types[value].dtype)
        self.layouts[value] = interned(settle(self.layouts[value]))
        settled = tuple(self.layouts[r] for r in node.results)
        self.choices[index] = Choice(choice.plan, settled)

    def _no_larger(self, value: int, than: int) -> bool:
        return prod(self.graph.types[value].shape) <= prod(self.graph.types[than].shape)

    def _pay(self, value: int, need: Layout) -> None:
        have = self.layouts[value]
        if have != need and (value, need) not in self._resharded:
            self._resharded.add((value, need))
            elements = plan(have, need, self.mesh).elements
            self.moved += elements * itemsize(self.graph.types[value].dtype)

    def return_layouts(self) -> list[Layout]:
        """A replaced argument's successor lies as the argument does; other results keep what they have, settled. Or as
        `results` says."""
        if self.results is not None:
            found = zip(self.graph.returns, self.results, strict=True)
            return [self.layouts[v] if want is None else interned(want.canonical(self.mesh)) for v, want in found]
        return [
            self.layouts[alias] if alias >= 0 else timeless(settle(self.layouts[value]), self.time)
            for value, alias in zip(self.graph.returns, self.graph.aliases, strict=True)
        ]


def settled_over(layout: Layout, axes: frozenset[str]) -> Layout:
    """A layout of which nothing is owed over these axes."""
    if axes.isdisjoint(layout.owed):
        return layout
    owed = layout.owed - axes
    return interned(Layout(layout.dims, layout.kind if owed else "", owed))


def timeless(layout: Layout, time: frozenset[str]) -> Layout:
    """A layout that is not split over axes of time."""
    if time.isdisjoint(layout.axes):
        return layout
    return interned(Layout(without(layout.dims, time), layout.kind, layout.owed))
