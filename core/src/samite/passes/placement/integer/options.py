"""What each class of a function can do with one mesh axis while the others stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from samite.ir.graph import Graph, Node, Op
from samite.layout import Dim, Layout, without
from samite.passes.placement.assignment import Assignment
from samite.passes.placement.integer.classes import Classes
from samite.passes.placement.plans import interned
from samite.passes.placement.regions import plan_regions
from samite.rules.binding import bind
from samite.rules.planning import OpPlan, plan_between, plan_op
from samite.rules.strategies import placings, strategies

__all__ = ["Edge", "Source", "edges", "makers", "options"]

SWEEPS = 2
"""Times that options travel from neighbour to neighbour, forward and back; each reaches through a block's views."""


class Source(NamedTuple):
    """Result number `result` of the ops of a class; of a class of arguments 0."""

    unit: int
    result: int


class Edge(NamedTuple):
    """The ops of class `target` take the value as operand `operand`; -1 is an argument whose successor the value is."""

    source: Source
    target: int
    operand: int


def makers(graph: Graph, classes: Classes) -> dict[int, Source]:
    """What makes each value."""
    arguments = len(graph.arguments)
    made_by = {a: Source(classes.of[a], 0) for a in range(arguments)}
    for i, node in enumerate(graph.nodes):
        made_by |= {r: Source(classes.of[arguments + i], k) for k, r in enumerate(node.results)}
    return made_by


def edges(graph: Graph, classes: Classes) -> dict[Edge, int]:
    """Every edge between classes, and how many it stands for."""
    arguments, made_by = len(graph.arguments), makers(graph, classes)
    found: dict[Edge, int] = {}
    for i, node in enumerate(graph.nodes):
        for k, operand in enumerate(node.operands):
            edge = Edge(made_by[operand], classes.of[arguments + i], k)
            found[edge] = found.get(edge, 0) + 1
    for value, alias in zip(graph.returns, graph.aliases, strict=True):
        if alias >= 0:
            edge = Edge(made_by[value], classes.of[alias], -1)
            found[edge] = found.get(edge, 0) + 1
    return found


def options(
    now: Assignment, classes: Classes, links: Iterable[Edge], axis: str, fixed: Mapping[int, Layout]
) -> list[list[OpPlan]]:
    """For each class the plans that differ from `now` in what they do with `axis` alone; the first does nothing. An
    argument's plans have its layout as their only result. `fixed` are arguments that keep their layout."""
    return _Sweep(now, classes, list(links), axis, fixed).run()


class _Sweep:
    def __init__(
        self, now: Assignment, classes: Classes, links: list[Edge], axis: str, fixed: Mapping[int, Layout]
    ) -> None:
        self.now, self.classes, self.axis, self.mesh, self.fixed = now, classes, axis, now.mesh, fixed
        self.arguments = len(now.graph.arguments)
        self.inputs: list[list[Edge]] = [[] for _ in classes.first]
        self.uses: list[list[Edge]] = [[] for _ in classes.first]
        for edge in links:
            self.uses[edge.source.unit].append(edge)
            if edge.operand >= 0:
                self.inputs[edge.target].append(edge)
        self.found: list[list[OpPlan]] = [self._first(unit) for unit in range(len(classes.first))]

    def run(self) -> list[list[OpPlan]]:
        order = range(len(self.found))
        for _ in range(SWEEPS):
            for unit in (*order, *reversed(order)):
                self._extend(unit)
        return self.found

    def _node(self, unit: int) -> Node | None:
        member = self.classes.first[unit] - self.arguments
        return self.now.graph.nodes[member] if member >= 0 else None

    def _first(self, unit: int) -> list[OpPlan]:
        node, member = self._node(unit), self.classes.first[unit]
        if node is None:
            if member in self.fixed:
                return [OpPlan((), (self.fixed[member],), {})]
            base = _less(self.now.layouts[member], self.axis, self.mesh)
            dims = enumerate(base.dims)
            split = [
                (*base.dims[:i], d, *base.dims[i + 1 :]) for i, dim in dims for d in placings(dim, self.axis, self.mesh)
            ]
            layouts = dict.fromkeys([base, *(interned(Layout(dims)) for dims in split)])
            return [OpPlan((), (layout,), {}) for layout in layouts]
        made = self.now.plans[member - self.arguments]
        if node.op.name == "dist.constrain":
            return [made]
        if node.op.regions:  # which are placed on their own: as they are, or whole
            whole = plan_regions(node, tuple(Layout.replicated(t.shape) for t in node.op.operands), self.mesh)
            return [made] if (whole.needs, whole.results) == (made.needs, made.results) else [made, whole]
        return _plans(node.op, _base(node.op, made, self.axis, self.mesh), self.axis, self.mesh, ())

    def _extend(self, unit: int) -> None:
        """Take up the layouts that neighbours have and the class could not make of its own."""
        node = self._node(unit)
        known = self.found[unit]
        if node is None:
            if self.classes.first[unit] not in self.fixed:
                have = {made.results[0] for made in known}
                asked = self._needs(unit, 0)
                base = known[0].results[0]
                new = [a for a in asked if a not in have and not a.owed and _less(a, self.axis, self.mesh) == base]
                known.extend(OpPlan((), (layout,), {}) for layout in new)
            return
        if node.op.name == "dist.constrain" or node.op.regions:
            return
        offered: list[tuple[Layout, ...]] = []
        for k in range(len(node.operands)):
            have = {made.needs[k] for made in known}
            given = (layout for e in self.inputs[unit] if e.operand == k for layout in self._results(e.source))
            offered.append(tuple(x for x in dict.fromkeys(given) if x not in have and self._uses_axis(x)))
        for k in range(len(node.results)):
            have = {made.results[k] for made in known}
            offered.append(tuple(x for x in self._needs(unit, k) if x not in have and self._uses_axis(x)))
        if any(offered):
            had = {(made.needs, made.results) for made in known}
            more = _plans(node.op, known[0], self.axis, self.mesh, tuple(offered))
            known.extend(made for made in more if (made.needs, made.results) not in had)

    def _uses_axis(self, layout: Layout) -> bool:
        return self.axis in layout.axes or self.axis in layout.owed

    def _results(self, source: Source) -> Iterable[Layout]:
        return (made.results[source.result] for made in self.found[source.unit])

    def _needs(self, unit: int, result: int) -> dict[Layout, None]:
        """The layouts that users of a result can take, in order."""
        users = (e for e in self.uses[unit] if e.source.result == result and e.operand >= 0)
        return dict.fromkeys(made.needs[e.operand] for e in users for made in self.found[e.target])


_found: dict[object, list[OpPlan]] = {}


def _plans(
    op: Op, base: OpPlan, axis: str, mesh: dict[str, int], offered: tuple[tuple[Layout, ...], ...]
) -> list[OpPlan]:
    """`strategies`, cached, with interned layouts."""
    key = op, base.needs, base.results, axis, tuple(mesh.items()), offered
    if key not in _found:
        bound = bind(op)
        given = offered or ((),) * (len(op.operands) + len(op.results))
        _found[key] = [_interned(made) for made in strategies(bound, base, axis, mesh, given)]
    return list(_found[key])


def _base(op: Op, made: OpPlan, axis: str, mesh: dict[str, int]) -> OpPlan:
    """The plan without the axis."""
    needs, results = ([_less(layout, axis, mesh) for layout in layouts] for layouts in (made.needs, made.results))
    if tuple(needs) == made.needs and tuple(results) == made.results:
        return made
    bound = bind(op)
    return _interned(plan_between(bound, needs, results, mesh) or plan_op(bound, needs, mesh))


def _less(layout: Layout, axis: str, mesh: Mapping[str, int]) -> Layout:
    dims: tuple[Dim, ...] = without(layout.dims, (axis,))
    owed = layout.owed - {axis}
    return interned(Layout(dims, layout.kind if owed else "", owed).canonical(mesh))


def _interned(made: OpPlan) -> OpPlan:
    return OpPlan(tuple(map(interned, made.needs)), tuple(map(interned, made.results)), made.given, made.masks)
