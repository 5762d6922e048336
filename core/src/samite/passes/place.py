"""place: every value gets a layout, and conflicts become explicit `dist.reshard`.

The user's layouts are constraints. The rest follows from them by rules, op by op, each op taking the plan that moves
least. Arguments without a constraint then take the layout that their users ask for, if the whole program moves no more
with it: so the second weight of an MLP is stored as the first one's split needs it.

Where placement is automatic the user has none, and all layouts are chosen by what they cost on the topology.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from samite.ir.build import Builder, Value, module_of, rewrite
from samite.ir.graph import Argument, Node, Op
from samite.ir.module import Module
from samite.ir.regions import changed_regions
from samite.layout import Layout, refuse_pinned
from samite.passes.placement import Assignment, Automatic, Placement, RegionPlan, best_placement, decide
from samite.passes.placement.walk import Choice, settled_over
from samite.rules.planning import OpPlan

__all__ = ["Place"]


class Place:
    name = "place"

    def __init__(
        self,
        results: Sequence[Layout | None] | None = None,
        automatic: Automatic | None = None,
        time: frozenset[str] = frozenset(),
    ) -> None:
        """With `results`, arguments keep exactly what they have, and results get these layouts; None lets one keep what
        its op gives, and owe what that leaves owed. Without it nothing that the function returns is owed, and new state
        lies as the old. With `automatic` what is not given is chosen by cost. Axes of `time` are no ranks but turns of
        a loop: they split inputs by a constraint alone, what is owed over them is settled at once, before all else,
        and no argument or result is split over them."""
        self.results, self.automatic, self.time = results, automatic, time
        self.notes: tuple[str, ...] = ()

    def run(self, module: Module) -> Module:
        """Arguments with a layout keep it; all others get one. Raises LayoutError for one that is pinned."""
        graph = module.graph
        given = [_given(a) for a in graph.arguments]
        refuse_pinned((*given, *(self.results or ())), "a program places")
        if self.automatic is None:
            return _written(module, best_placement(graph, module.mesh, given, self.results, self.time), self.time)
        decision = decide(graph, module.mesh, given, self.automatic)
        self.notes = decision.in_words()
        return _written(module, decision.chosen.placement)


def _written(module: Module, placement: Placement | Assignment, time: frozenset[str] = frozenset()) -> Module:
    layouts = zip(module.graph.arguments, placement.layouts, strict=False)
    arguments = [argument._replace(layout=str(layout)) for argument, layout in layouts]
    returns = [str(layout) for layout in placement.return_layouts()]
    write = partial(_Writer, placement, module.mesh_attribute, time)
    return rewrite(module, lambda _, build: write(build).run(), arguments, returns, regions=False)


def _given(argument: Argument) -> Layout | None:
    return Layout.parse(argument.layout) if argument.layout else None


class _Writer:
    """The placed module: ops with their results' layouts, and a reshard wherever a need differs from what is there."""

    def __init__(self, placement: Placement | Assignment, mesh: Any, time: frozenset[str], build: Builder) -> None:
        self.placement, self.mesh, self.time, self.build = placement, mesh, time, build
        self.graph = placement.graph
        self.values: list[Value] = list(build.arguments)
        self.moved: dict[tuple[int, Layout, str], Value] = {}

    def run(self) -> list[Value]:
        for node, choice in zip(self.graph.nodes, self.placement.choices, strict=True):
            self._op(node, choice)
        wanted = zip(self.graph.returns, self.placement.return_layouts(), strict=True)
        return [self._as(value, layout, self._made_at(value)) for value, layout in wanted]

    def _op(self, node: Node, choice: Choice) -> None:
        at, made = node.location, choice.plan
        needed = zip(node.operands, made.needs, strict=True)
        operands = [self._as(o, need, at, self.placement.copied_for(o, node)) for o, need in needed]
        layouts = [str(layout) for layout in made.results]
        results = list(self.build.op(self._with_regions(node, made), operands, node.op.results, at, layouts))
        for i, (layout, final) in enumerate(zip(made.results, choice.settled, strict=True)):
            first = settled_over(layout, self.time)
            for src, dst in ((layout, first), (first, final)):
                if src is not dst:
                    results[i] = self._reshard(results[i], node.op.results[i], src, dst, at)
        self.values.extend(results)

    def _with_regions(self, node: Node, made: OpPlan) -> Op:
        if not isinstance(made, RegionPlan):
            return node.op
        placed = iter(made.regions)
        return changed_regions(node.op, lambda region: _written(module_of(region, self.mesh), next(placed)).graph)

    def _as(self, value: int, layout: Layout, location: Any, copy: str = "") -> Value:
        """A value laid out so; resharded once, whoever asks for this copy."""
        have = self.placement.layouts[value]
        if have == layout:
            return self.values[value]
        if (value, layout, copy) not in self.moved:
            type = self.graph.types[value]
            self.moved[value, layout, copy] = self._reshard(self.values[value], type, have, layout, location)
        return self.moved[value, layout, copy]

    def _reshard(self, value: Value, type: Any, src: Layout, dst: Layout, location: Any) -> Value:
        texts = {"src": str(src), "dst": str(dst)}
        return self.build.dist("dist.reshard", [value], [type], texts, location, [texts["dst"]])[0]

    def _made_at(self, value: int) -> Any:
        producers = self.placement.producers
        return self.graph.nodes[producers[value]].location if value in producers else None
