"""Axis by axis, the largest first; then axis after axis again, each against all others, until nothing is gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from samite.ir.context import TensorType
from samite.ir.graph import Graph
from samite.layout import Layout
from samite.passes.placement.assignment import Assignment
from samite.passes.placement.integer.classes import Classes, alike
from samite.passes.placement.integer.moments import moment
from samite.passes.placement.integer.options import Edge, Source, edges, options
from samite.passes.placement.integer.program import Problem
from samite.passes.placement.integer.solver import solve
from samite.rules.planning import OpPlan, settle

__all__ = ["Search", "search"]

ROUNDS = 3
"""Over all axes, the first one included."""

MOMENTS = 4
"""The most points of a program that are held under the memory cap; one more each time that the peak moved elsewhere."""

ROOM = 0.98
"""The part of the cap that programs reckon with: what they hold of copies that ops share is estimated."""

WORTH = 1e-3
"""The part of the time that a change must gain: below it the model has no opinion."""


@dataclass(frozen=True)
class Search:
    """What was found, and by how much each axis' program may have missed its optimum at most."""

    best: Assignment
    gap: float


def search(start: Assignment, fixed: Mapping[int, Layout], cap: int = 0) -> Search:
    """The best placement found from `start`, never worse. `fixed` are the arguments that keep their layouts; `cap` is
    how many bytes a rank may hold, 0 any number: what comes nearest to it is best, then what is fastest."""
    graph, mesh = start.graph, start.mesh
    classes = alike(graph, [(str(fixed.get(i, "")), i in start.inputs) for i in range(len(graph.arguments))])
    descent = _Descent(classes, edges(graph, classes), fixed, cap)
    best, gap, settled = start, 0.0, 0
    axes = sorted((axis for axis, n in mesh.items() if n > 1), key=lambda axis: -mesh[axis])
    for axis in axes * ROUNDS:
        if settled == len(axes):
            break
        found, missed = descent.along(best, axis)
        settled += 1
        if descent.is_better(found, best):
            best, settled = found, 1
        gap = max(gap, missed)
    return Search(best, gap)


@dataclass(frozen=True)
class _Descent:
    classes: Classes
    links: Mapping[Edge, int]
    fixed: Mapping[int, Layout]
    cap: int

    def along(self, now: Assignment, axis: str) -> tuple[Assignment, float]:
        """The best placement that differs from `now` in one axis, and its gap."""
        plans = options(now, self.classes, self.links, axis, self.fixed)
        problem = _problem(now, self.classes, self.links, plans)
        best, gap, at = now, 0.0, now
        nodes: list[int] = []
        for _ in range(MOMENTS if self.cap else 1):
            if self.cap:
                fullest = at.peak
                if fullest.node in nodes or (nodes and fullest.nbytes <= self.cap):
                    break
                nodes.append(fullest.node)
                moments = (*problem.moments, moment(at, self.classes, fullest.node))
                problem = replace(problem, cap=int(self.cap * ROOM), moments=moments)
            found = solve(problem, now.costs)
            at = self._chosen(now, [plans[unit][found.chosen[unit]] for unit in self.classes.of])
            if self.is_better(at, best):
                best, gap = at, found.gap
        return best, gap

    def _chosen(self, now: Assignment, plans: Sequence[OpPlan]) -> Assignment:
        arguments = len(now.graph.arguments)
        layouts = [plan.results[0] for plan in plans[:arguments]]
        return Assignment(
            now.graph, layouts, plans[arguments:], now.costs, now.results, inputs=now.inputs, again=now.again
        )

    def is_better(self, one: Assignment, other: Assignment) -> bool:
        if self.cap:
            above, before = (max(each.peak.nbytes - self.cap, 0) for each in (one, other))
            if above != before:
                return above < before
        return one.seconds < other.seconds * (1 - WORTH)


def _problem(
    now: Assignment, classes: Classes, links: Mapping[Edge, int], plans: Sequence[Sequence[OpPlan]]
) -> Problem:
    graph, costs = now.graph, now.costs
    arguments = len(graph.arguments)
    seconds: list[list[float]] = []
    types = {Source(classes.of[i], 0): a.type for i, a in enumerate(graph.arguments)}
    phases: list[str] = []
    followers: set[int] = set()
    returned = _returned(graph, classes)
    for unit, (member, size) in enumerate(zip(classes.first, classes.sizes, strict=True)):
        if member < arguments:
            type, is_input = graph.arguments[member].type, member in now.inputs
            made = (plan.results[0] for plan in plans[unit])
            seconds.append([size * costs.argument(type, layout, is_input=is_input) for layout in made])
            phases.append("")
            continue
        node = graph.nodes[member - arguments]
        types |= {Source(unit, k): type for k, type in enumerate(node.op.results)}
        phases.append(node.source.phase)
        if (
            len(node.operands) == 1
            and not node.op.regions
            and _elements(node.op.results) <= _elements(node.op.operands)
        ):
            followers.add(unit)
        own = [size * costs.op(node.op, made) for made in plans[unit]]
        for k, count in returned.get(unit, {}).items():
            type = node.op.results[k]
            paid = [count * costs.reshard(m.results[k], settle(m.results[k]), type, waits=False) for m in plans[unit]]
            own = [a + b for a, b in zip(own, paid, strict=True)]
        seconds.append(own)
    apart = {unit for unit, member in enumerate(classes.first) if now.again and member < arguments}
    return Problem(plans, seconds, links, types, phases, followers, apart, now.seconds)


def _elements(types: Sequence[TensorType]) -> int:
    return sum(prod(type.shape) for type in types)


def _returned(graph: Graph, classes: Classes) -> dict[int, dict[int, int]]:
    """Class -> result -> how many of them the function returns as they are."""
    arguments = len(graph.arguments)
    made_by = {r: (classes.of[arguments + i], k) for i, n in enumerate(graph.nodes) for k, r in enumerate(n.results)}
    found: dict[int, dict[int, int]] = {}
    for value, alias in zip(graph.returns, graph.aliases, strict=True):
        if alias < 0 and value in made_by:
            unit, k = made_by[value]
            found.setdefault(unit, {}).setdefault(k, 0)
            found[unit][k] += 1
    return found
