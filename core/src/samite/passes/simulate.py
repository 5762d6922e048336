"""What a partitioned function will do when, on the model of a topology: ops by the roofline, collectives by the links.

A rank computes in program order, on one lane, and communicates in the order of its starts, on another. A collective
that is not started holds up the computation, and comes behind those under way. Where both lanes are busy each goes at
1 / (2 - e) of its speed: so two that take as long alone take 2 - e times that together, as an overlap's efficiency e
is measured. All ranks do the same, so one stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from samite.ir.graph import Graph, Node
from samite.passes.communication import Communication
from samite.passes.roofline import moves_nothing, seconds
from samite.passes.traffic import Collective, collectives
from samite.timeline import Lane, Span, Timeline
from samite.topology import Topology

__all__ = ["WHILE", "Pricing", "simulate"]

WHILE = 1
"""How often a `while` is taken to run."""


class Pricing:
    """Seconds of the nodes of one function: what each computes, and what it communicates."""

    def __init__(self, graph: Graph, mesh: Mapping[str, int], topology: Topology) -> None:
        self.mesh, self.topology = dict(mesh), topology
        self._communication = Communication(mesh, topology)
        self._collectives: dict[int, list[Collective]] = {}
        for found in collectives(graph, mesh):
            self._collectives.setdefault(found.node, []).append(found)
        self.computing = self._function(graph)
        self.communicating = [
            sum(each.times * self._communication.seconds(each) for each in self._collectives.get(index, ()))
            for index in range(len(graph.nodes))
        ]

    def collective(self, index: int) -> Collective | None:
        """The first one of a node."""
        return next(iter(self._collectives.get(index, ())), None)

    def _function(self, graph: Graph) -> list[float]:
        """Of each node. The IR has no strides, but a view of what was transposed or expanded is a copy."""
        strided = set[int]()
        found: list[float] = []
        for node in graph.nodes:
            copies = node.op.name in _VIEWS and node.operands[0] in strided
            if node.op.name in _STRIDED or (moves_nothing(node.op.name) and not copies and strided & {*node.operands}):
                strided.update(node.results)
            found.append(seconds(node.op, self.topology.device, copies=True) if copies else self._computing(node))
        return found

    def _computing(self, node: Node) -> float:
        if node.op.name in _MESSAGES:
            return self.topology.overlap.latency / 2 if node.op.name in ("dist.start", "dist.wait") else 0.0
        if not node.op.regions:
            return seconds(node.op, self.topology.device)
        each = [sum(self._function(region)) for region in node.op.regions]
        if node.op.name == "dist.cond":
            return max(each)
        times = node.op.operands[node.op.literals["carried"]].shape[0] if node.op.name == "dist.scan" else WHILE
        return times * sum(each)


_VIEWS = frozenset(("aten.view", "aten._unsafe_view", "aten.reshape"))
_STRIDED = frozenset(("aten.transpose.int", "aten.permute", "aten.t", "aten.expand"))
_MESSAGES = frozenset(
    f"dist.{verb}" for verb in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "start", "wait")
)


def simulate(graph: Graph, mesh: Mapping[str, int], topology: Topology) -> Timeline:
    """The timeline of rank 0."""
    return _Simulation(graph, Pricing(graph, mesh, topology)).run()


@dataclass
class _Message:
    span: Span  # its duration once it is over
    left: float  # seconds of work alone
    under_way: bool = False


class _Simulation:
    def __init__(self, graph: Graph, prices: Pricing) -> None:
        self.graph, self.prices = graph, prices
        self.speed = 1 / (2 - prices.topology.overlap.efficiency)
        self.now = 0.0
        self.computed: list[Span] = []
        self.sent: list[Span] = []
        self.queue: list[_Message] = []
        self.messages: dict[int, _Message] = {}  # by the number of the value in flight

    def run(self) -> Timeline:
        for index, node in enumerate(self.graph.nodes):
            if node.op.name == "dist.wait":
                self._wait(self.messages.pop(node.operands[0]))
            self._compute(node, self.prices.computing[index])
            if work := self.prices.communicating[index]:
                message = self._send(index, node, work)
                if node.op.name == "dist.start":
                    self.messages[node.results[0]] = message
                else:
                    self._wait(message)
            elif node.op.name == "dist.start":
                self.messages[node.results[0]] = _Message(Span(self.now, 0.0, "communication", ""), 0.0)
        computed, sent = self._marked()
        alone, waited = sum(self.prices.communicating), self.now - sum(self.prices.computing)
        hidden = min(1.0, max(0.0, 1 - waited / alone)) if alone else 0.0
        lanes = Lane(0, "compute", tuple(computed)), Lane(0, "communication", tuple(sent))
        return Timeline(lanes, self.now, hidden)

    def _send(self, index: int, node: Node, work: float) -> _Message:
        found = self.prices.collective(index)
        name = node.op.name.removeprefix("dist.") if found is None else f"{found.verb} {'·'.join(found.axes)}"
        message = _Message(Span(self.now, 0.0, "communication", name, node.source.line), work)
        self.queue.append(message)
        return message

    def _compute(self, node: Node, work: float) -> None:
        begun = self.now
        while work > 0:
            if not self.queue:
                self.now += work
                break
            step = min(work, self.queue[0].left)
            work -= step
            self._progress(step, step / self.speed)
        if self.now > begun:
            self.computed.append(Span(begun, self.now - begun, "compute", str(node.op), node.source.line))

    def _wait(self, message: _Message) -> None:
        while message.left > 0:
            self._progress(self.queue[0].left, self.queue[0].left)

    def _progress(self, work: float, took: float) -> None:
        """What is first in the queue gets on by `work` in `took` seconds."""
        first = self.queue[0]
        if not first.under_way:
            first.under_way, first.span = True, replace(first.span, start=self.now)
        self.now += took
        first.left -= work
        if first.left <= 1e-12 * self.now:
            first.left = 0.0
            self.sent.append(replace(first.span, duration=self.now - first.span.start))
            del self.queue[0]

    def _marked(self) -> tuple[list[Span], list[Span]]:
        """Both lanes with the critical path, which goes back from the end: through what was computed, and where nothing
        was, through what was waited for."""
        at, critical = self.now, set[int]()
        by_end = sorted([*self.computed, *self.sent], key=lambda span: (span.end, span.kind == "compute"))
        for span in reversed(by_end):
            if abs(span.end - at) <= 1e-9 * self.now:
                critical.add(id(span))
                at = span.start
        marked: list[Iterator[Span]] = [
            (replace(span, critical=id(span) in critical) for span in lane) for lane in (self.computed, self.sent)
        ]
        return list(marked[0]), list(marked[1])
