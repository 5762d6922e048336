"""Which collectives run beside computation, and from where on: the plan of `overlap_communication`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from samite.ir.graph import Graph, Node
from samite.passes.roofline import moves_nothing
from samite.passes.simulate import Pricing
from samite.passes.traffic import is_collective, itemsize
from samite.topology import Topology

__all__ = ["Plan", "plan"]

_PARTS = frozenset(("aten.split_with_sizes", "aten.view"))


@dataclass
class Plan:
    """By the index of each collective that is started the index of the node that it is started before."""

    uses: Uses
    starts: dict[int, int] = field(default_factory=dict[int, int])

    def at(self, index: int) -> list[int]:
        """What is started before a node, in order."""
        return [collective for collective, start in self.starts.items() if start == index]


class Uses:
    """When the results of a function's nodes are first computed with."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.users = graph, graph.users()
        self.made = {result: index for index, node in enumerate(graph.nodes) for result in node.results}

    def takes_apart(self, node: Node) -> bool:
        """Whether an op computes nothing, and can as well wait with what it is given."""
        return node.op.name in _PARTS

    def first(self, node: Node) -> int:
        """The index of the first op that computes with what a node gives; past the last one if the function returns it,
        -1 if nobody uses it."""
        users = [user for result in node.results for user in self.users[result]]
        return min((self._use(user) for user in users), default=-1)

    def ready(self, node: Node) -> int:
        """The index of the first node before which its operands are there."""
        return 1 + max((self.made.get(operand, -1) for operand in node.operands), default=-1)

    def parts(self, node: Node) -> int:
        """How many ops take apart what a node gives."""
        users = {user for result in node.results for user in self.users[result] if user < len(self.graph.nodes)}
        taking = [self.graph.nodes[user] for user in users if self.takes_apart(self.graph.nodes[user])]
        return sum(1 + self.parts(each) for each in taking)

    def _use(self, user: int) -> int:
        if user < len(self.graph.nodes) and self.takes_apart(node := self.graph.nodes[user]):
            return self.first(node)
        return user


def plan(graph: Graph, mesh: Mapping[str, int], topology: Topology | None, memory: int) -> Plan:
    """As `overlap_communication` says. Starts keep the order of the program."""
    uses = Uses(graph)
    if topology is not None:
        return _Planner(graph, uses, Pricing(graph, mesh, topology), memory).plan()
    found = Plan(uses)
    for index, node in enumerate(graph.nodes):
        if _can_start(node) and uses.first(node) > index + 1 + uses.parts(node):
            found.starts[index] = index
    return found


def _can_start(node: Node) -> bool:
    return is_collective(node) and node.op.name != "dist.start"


class _Planner:
    def __init__(self, graph: Graph, uses: Uses, prices: Pricing, memory: int) -> None:
        self.graph, self.uses, self.prices, self.memory = graph, uses, prices, memory
        self.worth = prices.topology.overlap
        self.computed = [0.0, *accumulate(prices.computing)]  # seconds before each node
        self.levels = _levels(graph) if memory else []
        self.busy = 0  # the node until which what was started earlier keeps the links busy
        self.last = 0  # before which nothing may start: all ranks have one order

    def plan(self) -> Plan:
        found = Plan(self.uses)
        for index, node in enumerate(self.graph.nodes):
            if not _can_start(node):
                continue
            seconds, use = self.prices.communicating[index], self.uses.first(node)
            start = self._start(index, node, seconds, use)
            beside = self.computed[max(use, 0)] - self.computed[max(start, self.busy)]
            worth = self.worth.efficiency * min(beside, seconds) > self.worth.latency
            if worth and self._fits(self._kept(node), index, use):
                found.starts[index] = self.last = start
                self._occupy(start, seconds)
            else:
                self.last, self.busy = index + 1, max(self.busy, index)
        return found

    def _start(self, index: int, node: Node, seconds: float, use: int) -> int:
        """As early as its time takes, and data and memory allow."""
        makers = [self.graph.nodes[self.uses.made[o]] for o in node.operands if o in self.uses.made]
        if any(_can_start(maker) or self.uses.takes_apart(maker) for maker in makers):
            return index  # it would be waited for before its time
        start, earliest = index, max(self.uses.ready(node), self.last)
        result = _nbytes(self.graph, node.results)
        while start > earliest and self.computed[max(use, 0)] - self.computed[max(start, self.busy)] < seconds:
            if not self._fits(result, start - 1, start):
                break
            start -= 1
        return start

    def _kept(self, node: Node) -> int:
        """Bytes of operands that are kept until the collective is over, if nothing keeps them anyway."""
        return _nbytes(self.graph, [o for o in node.operands if o in self.uses.made])

    def _fits(self, nbytes: int, first: int, last: int) -> bool:
        """Whether there is memory for so much more from node `first` until `last`."""
        return not self.memory or all(level + nbytes <= self.memory for level in self.levels[first:last])

    def _occupy(self, start: int, seconds: float) -> None:
        begun = self.computed[max(start, self.busy)]
        self.busy = min(bisect_left(self.computed, begun + seconds), len(self.graph.nodes))


def _nbytes(graph: Graph, values: Sequence[int]) -> int:
    return sum(prod(graph.types[value].shape) * itemsize(graph.types[value].dtype) for value in values)


def _levels(graph: Graph) -> list[int]:
    """Bytes that a rank holds while it is at each node; arguments are there all the time."""
    last = [max(found, default=-1) for found in graph.users()]
    changes = [0] * (len(graph.nodes) + 2)
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        if moves_nothing(node.op.name):
            for operand in node.operands:
                last[operand] = max(last[operand], *(last[result] for result in node.results))
        else:
            for result in node.results:
                changes[index] += (size := _nbytes(graph, [result]))
                changes[max(last[result], index) + 1] -= size
    state = _nbytes(graph, range(len(graph.arguments)))
    return [state + level for level in accumulate(changes[: len(graph.nodes)])]
