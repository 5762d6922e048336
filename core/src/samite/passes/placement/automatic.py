"""Automatic placement: plain ways to split a step, what the search finds, and which of them is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from samite.errors import PlacementError
from samite.ir.graph import Graph
from samite.layout import Layout
from samite.passes.placement.assignment import Assignment
from samite.passes.placement.costs import Costs
from samite.passes.placement.explanation import cost_in_words, split_in_words
from samite.passes.placement.integer import Search, search
from samite.passes.placement.plain import batched, over_all_axes
from samite.passes.placement.search import best_placement
from samite.passes.placement.walk import Placement
from samite.passes.roofline import moves_nothing
from samite.passes.words import bytes_in_words
from samite.topology import Topology

__all__ = ["Automatic", "Candidate", "Decision", "decide"]

SEARCHED = "searched"
"""The name of what an integer program found."""

MARGIN = 0.02
"""The part of the time that a less plain way must save: the model does not tell smaller differences."""


@dataclass(frozen=True)
class Automatic:
    """Placement by cost on a topology. `inputs` are the arguments that are no state, by name; `memory` is how many
    bytes a rank may hold at a time, 0 if any number. With `compare` more is priced, to be told of: tensor parallelism,
    which otherwise the search finds, and what could have been if the arguments in `held` did not lie somewhere."""

    topology: Topology = field(default_factory=Topology)
    inputs: frozenset[str] = frozenset()
    memory: int = 0
    compare: bool = False
    held: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Candidate:
    """One way to place a function, and what it costs."""

    name: str
    placement: Placement | Assignment
    cost: Assignment


@dataclass(frozen=True)
class Decision:
    """The way taken, all that were looked at, from the plainest on, and the part of its time by which the search may
    have missed the best."""

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    gap: float
    memory: int

    def in_words(self) -> tuple[str, ...]:
        """What was chosen and why, a line each."""
        best = self.chosen.cost
        lines = [f"{self.chosen.name}: {cost_in_words(best)}"]
        if len(self.candidates) == 1:
            return (*lines, "there is less to gain than one message takes")
        lines.append(f"over {split_in_words(best)}; the search left a gap of {self.gap:.1%}")
        for other in self.candidates:
            if other is not self.chosen:
                lines.append(f"{other.name} instead: {cost_in_words(other.cost)}, {self._against(other.cost)}")
        return tuple(lines)

    def _against(self, other: Assignment) -> str:
        over = other.peak.nbytes - self.memory
        if self.memory and over > 0:
            return f"{bytes_in_words(over)} more than a rank may hold"
        times = other.seconds / self.chosen.cost.seconds
        if abs(times - 1) <= MARGIN:
            return "no faster" if times >= 1 - 1e-9 else f"too little to gain ({1 - times:.1%})"
        if times < 1:
            return f"{1 - times:.0%} faster, but not looked for unless to be told of"
        return f"{times:.1f} times as long" if times >= 1.1 else f"{times - 1:.0%} longer"


def decide(graph: Graph, mesh: dict[str, int], given: Sequence[Layout | None], automatic: Automatic) -> Decision:
    """The plainest of the ways that are as fast as any, within `MARGIN`; arguments of `given` keep their layouts.

    Raises PlacementError if no way that was found keeps to the memory.
    """
    return _Candidates(graph, mesh, given, automatic).decide()


class _Candidates:
    def __init__(
        self, graph: Graph, mesh: dict[str, int], given: Sequence[Layout | None], automatic: Automatic
    ) -> None:
        self.graph, self.mesh, self.given, self.automatic = graph, mesh, list(given), automatic
        self.costs = Costs(mesh, automatic.topology)
        self.inputs = frozenset(i for i, a in enumerate(graph.arguments) if a.name in automatic.inputs)
        self.fixed = {i: layout.canonical(mesh) for i, layout in enumerate(given) if layout is not None}

    def decide(self) -> Decision:
        found, gap = self._plain(), 0.0
        if self._worth_splitting(found[0].cost):
            searched = self._search(found)
            found.append(Candidate(SEARCHED, searched.best, searched.best))
            gap = searched.gap
        fitting = [c for c in found if self._fits(c.cost)]
        if not fitting:
            raise self._too_large(min((c.cost for c in found), key=lambda cost: cost.peak.nbytes))
        least = min(c.cost.seconds for c in fitting)
        chosen = next(c for c in fitting if c.cost.seconds <= least * (1 + MARGIN))
        if self.automatic.compare and len(found) > 1:
            found[:-1] = self._alternatives(found[:-1])
        return Decision(chosen, tuple(found), gap, self.automatic.memory)

    def _fits(self, cost: Assignment) -> bool:
        return not self.automatic.memory or cost.peak.nbytes <= self.automatic.memory

    def _worth_splitting(self, whole: Assignment) -> bool:
        """Whether there is more to gain than one message takes, or too little memory."""
        topology = self.automatic.topology
        started = topology.device.latency * sum(not moves_nothing(node.op.name) for node in self.graph.nodes)
        message = min(topology.cost(0, axis) for axis, n in self.mesh.items() if n > 1)
        return whole.computing - started > message or not self._fits(whole)

    def _plain(self) -> list[Candidate]:
        found = [self._follow("as given" if self.fixed else "not split", self.given)]
        if not self._worth_splitting(found[0].cost):
            return found
        batch = over_all_axes(self.graph, self.given, self.mesh, batched(self.graph, self.inputs))
        if batch != self.given:
            found.append(self._follow("data parallel", batch))
        state = {i: -1 for i in range(len(self.graph.arguments)) if i not in self.inputs}
        sharded = over_all_axes(self.graph, batch, self.mesh, state)
        if sharded != batch:
            found.append(self._follow("fully sharded", sharded))
        return found

    def _follow(self, name: str, layouts: Sequence[Layout | None]) -> Candidate:
        placement = best_placement(self.graph, self.mesh, layouts, None)
        arguments = placement.layouts[: len(self.graph.arguments)]
        plans = [choice.plan for choice in placement.choices]
        cost = Assignment(self.graph, arguments, plans, self.costs, inputs=self.inputs)
        if self._fits(cost):
            return Candidate(name, placement, cost)
        again = cost.copying_again()
        return Candidate(name, again, again)

    def _alternatives(self, found: Sequence[Candidate]) -> list[Candidate]:
        """Plain ways and tensor parallelism, wherever arguments lie already."""
        free = [
            None if argument.name in self.automatic.held else layout
            for argument, layout in zip(self.graph.arguments, self.given, strict=True)
        ]
        if free == self.given:
            return [*found, self._tensor_parallel(found[0].cost)]
        freed = _Candidates(self.graph, self.mesh, free, self.automatic)
        ways = freed._plain()
        return [*ways, freed._tensor_parallel(ways[0].cost)]

    def _tensor_parallel(self, whole: Assignment) -> Candidate:
        """What is best with inputs that every rank has whole."""
        found = search(whole, self.fixed | {i: whole.arguments[i] for i in self.inputs}, self.automatic.memory).best
        return Candidate("tensor parallel", found, found)

    def _search(self, found: Sequence[Candidate]) -> Search:
        """From the fastest that fits, or from what takes least memory, where that must do."""
        memory = self.automatic.memory
        fitting = [c.cost for c in found if self._fits(c.cost)]
        if fitting:
            start = min(fitting, key=lambda cost: cost.seconds)
        else:
            start = min((c.cost for c in found), key=lambda cost: cost.peak.nbytes)
        made = search(start, self.fixed, memory)
        if start.again or self._fits(made.best):
            return made
        return search(made.best.copying_again(), self.fixed, memory)

    def _too_large(self, least: Assignment) -> PlacementError:
        memory, peak = self.automatic.memory, least.peak
        node = self.graph.nodes[peak.node] if peak.node < len(self.graph.nodes) else None
        allowed, taken, over, arguments = map(bytes_in_words, (memory, peak.nbytes, peak.nbytes - memory, peak.state))
        return PlacementError(
            f"no placement that was found fits in {allowed} a rank: the smallest takes {taken}, {over} too much, "
            f"of which arguments are {arguments}",
            where=node.source.line if node else "",
            help=f"{taken} would do (memory_per_rank), or smaller inputs, or over {prod(self.mesh.values())} ranks",
        )
