"""The integer program: one plan for every class, so that ops and the reshards between them take least time.

Variables. `x[u, s]` is 1 if class u takes its s-th plan. `q[e, S, L]` is 1 if the value of edge e is made as S and
taken as L, tied to the x of both its ends by its marginals: the local polytope of a pairwise model, which is tight on
trees and nearly so on training steps. `copy[v, S, L]` is at least every such q of the value's edges, so that users who
take a value alike share its reshard. Only x need be integral. Under a memory cap the bytes that each variable stands
for at some points of the function are kept beside it; solver.py says what becomes of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from samite.ir.context import TensorType
from samite.layout import Layout
from samite.passes.placement.assignment import UPDATE
from samite.passes.placement.costs import Costs
from samite.passes.placement.integer.options import Edge, Source
from samite.rules.planning import OpPlan

__all__ = ["Moment", "Problem", "Program", "Terms", "write"]

Terms = list[tuple[int, float]]
"""A linear form: variables and their factors."""


@dataclass(frozen=True)
class Moment:
    """A point of the program: how many results of each class are held there, and how many values of each edge would be
    held in a copy if the edge reshards."""

    values: Mapping[Source, int]
    copies: Mapping[Edge, int]


@dataclass(frozen=True)
class Problem:
    """`plans` of each class, its ops' own `seconds` (a class' times its size), the `edges` with their counts, the type
    of every value, the phase of each class. Of an edge to a follower the value is taken as it is made, unless it owes
    or the follower cannot: a reshard is no cheaper before such an op than behind it."""

    plans: Sequence[Sequence[OpPlan]]
    seconds: Sequence[Sequence[float]]
    edges: Mapping[Edge, int]
    types: Mapping[Source, TensorType]
    phases: Sequence[str]
    followers: Collection[int]
    apart: Collection[int]
    """Classes whose values are copied anew for each phase."""
    scale: float
    """Seconds of the placement that the search stands at: costs are solved for in parts of it."""
    cap: int = 0
    """Bytes that a rank may hold at any of the `moments`."""
    moments: Sequence[Moment] = ()


@dataclass(frozen=True)
class Program:
    """The program as rows: `price` of each variable in seconds; `x` has the variables of each class, of which one is 1
    and the others 0; every form of `zero` is 0, every form of `positive` at least 0. `held` has for each moment the
    bytes that variables stand for. The x come first."""

    price: list[float] = field(default_factory=list[float])
    x: list[list[int]] = field(default_factory=list[list[int]])
    zero: list[Terms] = field(default_factory=list[Terms])
    positive: list[Terms] = field(default_factory=list[Terms])
    held: list[Terms] = field(default_factory=list[Terms])

    def variable(self, price: float) -> int:
        self.price.append(price)
        return len(self.price) - 1


def write(problem: Problem, costs: Costs) -> Program:
    return _Writer(problem, costs).run()


class _Writer:
    def __init__(self, problem: Problem, costs: Costs) -> None:
        self.problem, self.costs = problem, costs
        self.made = Program(held=[[] for _ in problem.moments])

    def run(self) -> Program:
        made = self.made
        made.x.extend([made.variable(price) for price in seconds] for seconds in self.problem.seconds)
        by_source: dict[Source, list[Edge]] = defaultdict(list)
        for edge in self.problem.edges:
            by_source[edge.source].append(edge)
        for source, users in by_source.items():
            self._value(source, users)
        for held, moment in zip(made.held, self.problem.moments, strict=True):
            for source, count in moment.values.items():
                for plan, column in zip(self.problem.plans[source.unit], made.x[source.unit], strict=True):
                    size = self.costs.nbytes(self.problem.types[source], plan.results[source.result])
                    held.append((column, float(count * size)))
        return made

    def _value(self, source: Source, users: Sequence[Edge]) -> None:
        """The reshards between the plans that make a value and those that take it."""
        groups: dict[str, list[Edge]] = defaultdict(list)
        for edge in users:
            groups[self._phase(edge) if source.unit in self.problem.apart else ""].append(edge)
        for group in groups.values():
            self._copies(source, group, alone=len(users) == 1)

    def _copies(self, source: Source, users: Sequence[Edge], *, alone: bool) -> None:
        """Those of them that users can share. `alone` is an edge that is the value's only one."""
        made = self._grouped([plan.results[source.result] for plan in self.problem.plans[source.unit]], source.unit)
        taken = [self._grouped(self._needs(edge), edge.target) for edge in users]
        count = max(self.problem.edges[edge] for edge in users)
        type = self.problem.types[source]
        takers = {
            need: [e for e, group in zip(users, taken, strict=True) if need in group] for g in taken for need in g
        }
        copies: dict[tuple[Layout, Layout], int] = {}
        for edge, group in zip(users, taken, strict=True):
            if len(made) == len(group) == 1 and made.keys() == group.keys():
                continue
            follows = alone and edge.target in self.problem.followers
            sums_of_made: dict[Layout, list[tuple[int, float]]] = {src: [] for src in made}
            for dst, columns in group.items():
                terms: list[tuple[int, float]] = []
                for src in made:
                    if follows and src is not dst and src in group and dst in made and not src.owed:
                        continue
                    waits = any(self._phase(e) != UPDATE for e in takers[dst])
                    price = self.costs.reshard(src, dst, type, waits=waits) * count
                    if len(takers[dst]) == 1 or src is dst:
                        flow = self.made.variable(price)
                        self._hold(flow, source, src, dst, [edge])
                    else:
                        flow = self.made.variable(0.0)
                        if (src, dst) not in copies:
                            copies[src, dst] = self.made.variable(price)
                            self._hold(copies[src, dst], source, src, dst, takers[dst])
                        self.made.positive.append([(copies[src, dst], 1.0), (flow, -1.0)])
                    terms.append((flow, 1.0))
                    sums_of_made[src].append((flow, 1.0))
                self.made.zero.append([*terms, *((column, -1.0) for column in columns)])
            for src, terms in sums_of_made.items():
                self.made.zero.append([*terms, *((column, -1.0) for column in made[src])])

    def _phase(self, edge: Edge) -> str:
        return self.problem.phases[edge.target] if edge.operand >= 0 else UPDATE

    def _hold(self, column: int, source: Source, src: Layout, dst: Layout, users: Sequence[Edge]) -> None:
        """Account for a copy at the moments at which it is held."""
        if src is dst:
            return
        for held, moment in zip(self.made.held, self.problem.moments, strict=True):
            count = max(moment.copies.get(edge, 0) for edge in users)
            if count:
                held.append((column, float(count * self.costs.nbytes(self.problem.types[source], dst))))

    def _needs(self, edge: Edge) -> list[Layout]:
        plans = self.problem.plans[edge.target]
        return [plan.needs[edge.operand] if edge.operand >= 0 else plan.results[0] for plan in plans]

    def _grouped(self, layouts: Sequence[Layout], unit: int) -> dict[Layout, list[int]]:
        found: dict[Layout, list[int]] = {}
        for layout, column in zip(layouts, self.made.x[unit], strict=True):
            found.setdefault(layout, []).append(column)
        return found
