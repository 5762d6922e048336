"""cut_stages: one function becomes those of a pipeline, one for each stage and phase.

    before.k, count.k   what the loop needs to know, on each stage that needs it
    forward             of one microbatch
    backward_input      of one microbatch: what the stage before waits for
    backward_weight     of one microbatch: the rest
    update.k            once, after the loop; k counts hops between stages

`turns` says when an op runs, `spread` and `homes` where. What the functions hand to each other follows from what they
read (`samite.schedules.flow`): nothing here knows of an order, which `samite.schedules` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from samite.ir.graph import Graph
from samite.ir.module import Module
from samite.mesh import Mesh
from samite.passes.split_microbatches import MICROBATCH
from samite.passes.stages.functions import StageFunction, Writer, is_trivial
from samite.passes.stages.homes import Homes, homes
from samite.passes.stages.spread import Spread, spread
from samite.passes.stages.turns import Turns, turns
from samite.passes.stages.whole import whole
from samite.schedules.flow import Join
from samite.topology import Topology

__all__ = ["CutStages", "Stages"]


@dataclass(frozen=True)
class Stages:
    """What `cut_stages` gives. `returns` are the values of the function's results, and `homes` the stages on which
    these and the arguments are, None for an argument that every stage has."""

    functions: tuple[StageFunction, ...]
    joins: tuple[Join, ...]
    returns: tuple[int, ...]
    return_homes: tuple[int, ...]
    argument_homes: tuple[int | None, ...]
    cuts: tuple[int, ...]


@dataclass(frozen=True)
class CutStages:
    """`mesh` is the one that ranks are on, `axis` that of the pipeline. `inputs` are arguments of which a microbatch is
    a part; `state` those that live on one stage: on one of those of the index on the axis that `given` says, if it
    does. `owners` are the arguments with which results that are new lie. `marks` are the numbers of the forward ops
    with which stages begin, if the user says so."""

    mesh: Mesh
    axis: str
    stages: int
    topology: Topology
    inputs: frozenset[int]
    state: frozenset[int]
    given: Mapping[int, int]
    owners: Mapping[int, int]
    marks: Sequence[int] = ()

    def run(self, module: Module) -> Stages:
        """Needs a partitioned module, for the mesh of one stage with `mb` before it. Raises ScheduleError."""
        module = whole(module)
        graph = module.graph
        when = turns(graph, module.mesh, self.inputs)
        where = spread(graph, when, self.stages, self.topology, self.axis, self.marks)
        at = homes(graph, when, where, self.state, self.given, self.mesh[self.axis])
        writer = Writer(graph, when, Module.empty(self.mesh).mesh_attribute, module.mesh[MICROBATCH])
        return _Cut(graph, when, where, at, writer, self.owners).run()


class _Cut:
    def __init__(
        self, graph: Graph, turns: Turns, spread: Spread, homes: Homes, writer: Writer, owners: Mapping[int, int]
    ) -> None:
        self.graph, self.turns, self.spread, self.homes, self.writer = graph, turns, spread, homes, writer
        self.functions: list[StageFunction] = []
        self.users = graph.users()
        self.returns: list[tuple[int, int | None]] = []  # a value, and the stage that it is to be on
        for at, (value, alias) in enumerate(zip(graph.returns, graph.aliases, strict=True)):
            beside = alias if alias >= 0 else owners.get(at, -1)
            self.returns.append((turns.joined.get(value, value), homes.of[beside] if beside >= 0 else None))
        self.groups: dict[int, tuple[int, str]] = dict(spread.groups)

    def run(self) -> Stages:
        self._group_updates()
        self._write_groups()
        for stage in range(len(self.spread.cuts) + 1):
            self._write_before(stage)
        joins = {v: j for v, j in self.turns.joins.items() if any(j.term in f.makes for f in self.functions)}
        return Stages(
            tuple(sorted(self.functions, key=_place)),
            tuple(joins.values()),
            tuple(value for value, _ in self.returns),
            tuple(self._home(value, wanted) for value, wanted in self.returns),
            tuple(self.homes.of[: len(self.graph.arguments)]),
            self.spread.cuts,
        )

    def _home(self, value: int, wanted: int | None) -> int:
        """Where a result is left: with the state that it replaces, else where it is made."""
        return wanted if wanted is not None else self.homes.of[value] or 0

    def _group_updates(self) -> None:
        needed, seen = [value for value, _ in self.returns], set[int]()
        while needed:
            value = needed.pop()
            index = self.writer.producers.get(value)
            if index is None or index in seen or value in self.turns.joins:
                continue
            seen.add(index)
            node = self.graph.nodes[index]
            if self.homes.late[value]:
                stage = self.homes.of[value]
                assert stage is not None, "what comes of a join has a stage"
                self.groups[index] = stage, f"update.{self.homes.hops[value]}"
            needed.extend(self.turns.joined.get(o, o) for o in node.operands)

    def _write_groups(self) -> None:
        members: dict[tuple[int, str], list[int]] = {}
        for index, group in sorted(self.groups.items()):
            members.setdefault(group, []).append(index)
        outputs = {group: self._outputs(group, indices) for group, indices in members.items()}
        for value, wanted in self.returns:  # that no stage has to itself: any can make them
            index = self.writer.producers.get(value)
            if index is not None and index not in self.groups and value not in self.turns.joins:
                outputs.setdefault((self._home(value, wanted), "update.0"), []).append(value)
        for (stage, phase), made in outputs.items():
            inside = partial(self._inside, (stage, phase))
            if made:
                each = not phase.startswith("update")
                self.functions.append(self.writer.write(stage, phase, list(dict.fromkeys(made)), inside, each=each))

    def _outputs(self, group: tuple[int, str], indices: Sequence[int]) -> list[int]:
        """What a group's ops make for others."""
        terms = {join.term for join in self.turns.joins.values()}
        returned = {value for value, _ in self.returns}
        return [
            result
            for index in indices
            for result in self.graph.nodes[index].results
            if result in returned
            or result in terms
            or any(self.groups.get(user, group) != group for user in self.users[result])
        ]

    def _inside(self, group: tuple[int, str], index: int) -> bool:
        if index in self.groups:
            return self.groups[index] == group
        result = self.graph.nodes[index].results[0]
        if self.homes.late[result] or self.turns.varying[result] or self.turns.rounds[result]:
            return False
        return group[1].startswith("update") or is_trivial(self.graph.nodes[index])

    def _write_before(self, stage: int) -> None:
        """What the stage's functions read and no loop makes: found by rounds, the last first."""
        rounds = self.turns.rounds
        joined = {number for number in self.turns.joins if number not in self.turns.known}
        made = {value for f in self.functions for value in f.makes if self._is_handed_on(value)} | joined
        read = {port.value for f in self.functions if f.stage == stage for port in f.reads}
        wanted = {value for value in read if value >= len(self.graph.arguments)} - made
        for k in range(max((rounds[v] for v in wanted), default=-1), -1, -1):
            now = sorted(v for v in wanted if rounds[v] == k and v not in self.turns.joins)
            wanted |= self._add(stage, f"before.{k}", now, partial(self._known, k), each=False)
            terms = sorted(self.turns.joins[v].term for v in wanted if rounds[v] == k and v in self.turns.joins)
            wanted |= self._add(stage, f"count.{k - 1}", terms, self._counts, each=True)

    def _is_handed_on(self, value: int) -> bool:
        """Whether one stage makes a value for all others. The rest every stage that needs it makes for itself."""
        return self.turns.varying[value] or self.homes.late[value]

    def _add(
        self, stage: int, phase: str, outputs: Sequence[int], inside: Callable[[int], bool], *, each: bool
    ) -> set[int]:
        """Write the function, if there is something to make; gives the values that it reads and others must make."""
        if not outputs:
            return set()
        made = self.writer.write(stage, phase, outputs, inside, each=each)
        self.functions.append(made)
        return {port.value for port in made.reads if port.value >= len(self.graph.arguments)}

    def _known(self, after: int, index: int) -> bool:
        """Whether an op can run once the joins of so many rounds are there, and not before."""
        result = self.graph.nodes[index].results[0]
        return not self.turns.varying[result] and not self.homes.late[result] and self.turns.rounds[result] == after

    def _counts(self, index: int) -> bool:
        node = self.graph.nodes[index]
        return self.turns.varying[node.results[0]] or is_trivial(node)


_PHASES = ("before", "count", "forward", "backward_input", "backward_weight", "update")


def _place(function: StageFunction) -> tuple[int, int, int]:
    """Stages one after another, and each in the order in which it runs."""
    name, _, number = function.phase.partition(".")
    return function.stage, _PHASES.index(name), int(number or 0)
