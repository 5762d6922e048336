"""overlap_communication: a collective whose result is not needed at once runs beside the ops that do not need it.

It becomes `dist.start` and `dist.wait` before what first computes with its result; the ops between that only take it
apart (a bucket's gradients) go there too. It starts where it stood, since `bucket_collectives` has put each collective
where its bucket is full; or, if its operands are there before (the gather of a parameter), as much earlier as takes its
time to compute, so that what it gives is not held longer than need be. One with nothing to do meanwhile stays as it is.

With a topology a collective is started only if that hides more than it costs, and if there is the memory for it; and
all of it is undone unless the whole function becomes faster.
"""

from __future__ import annotations

from samite.ir.asynchronous import started
from samite.ir.build import Builder, Value, rewrite
from samite.ir.graph import Graph, Node
from samite.ir.module import Module
from samite.passes.overlap_plan import Plan, plan
from samite.passes.simulate import simulate
from samite.passes.words import seconds_in_words
from samite.topology import Topology

__all__ = ["OverlapCommunication"]


class OverlapCommunication:
    """For a `topology`, where a rank may hold `memory` bytes at a time (0: any number); without one wherever it can."""

    name = "overlap_communication"

    def __init__(self, topology: Topology | None = None, memory: int = 0) -> None:
        self.topology, self.memory = topology, memory
        self.notes: tuple[str, ...] = ()

    def run(self, module: Module) -> Module:
        if self.topology is not None and not self.topology.overlap.efficiency:
            return module
        mesh, count = module.mesh, 0

        def body(graph: Graph, build: Builder) -> list[Value]:
            nonlocal count
            planned = plan(graph, mesh, self.topology, self.memory)
            count += len(planned.starts)
            return _Overlap(graph, build, planned).run()

        made = rewrite(module, body)
        if self.topology is None or not count:
            return made
        before, after = (simulate(m.graph, mesh, self.topology) for m in (module, made))
        if after.seconds >= before.seconds:
            self.notes = (f"nothing is gained by it: {seconds_in_words(after.seconds)} a call, as before or more",)
            return module
        self.notes = (
            f"{count} collectives run beside computation, which hides {after.hidden:.0%} of the communication: "
            f"{seconds_in_words(after.seconds)} a call instead of {seconds_in_words(before.seconds)}",
        )
        return made


class _Overlap:
    def __init__(self, graph: Graph, build: Builder, planned: Plan) -> None:
        self.graph, self.build, self.planned = graph, build, planned
        self.values: dict[int, Value] = dict(enumerate(build.arguments))
        self.under_way: dict[int, tuple[Node, Value]] = {}  # by the number of the result
        self.held: dict[int, Node] = {}  # ops that take apart what is under way, by the numbers of their results

    def run(self) -> list[Value]:
        for index, node in enumerate(self.graph.nodes):
            for token in self.planned.at(index):
                self._start(self.graph.nodes[token], token)
            if index in self.planned.starts:
                continue
            if self.planned.uses.takes_apart(node) and any(
                o in self.under_way or o in self.held for o in node.operands
            ):
                self.held.update(dict.fromkeys(node.results, node))
            else:
                self._emit(node)
        return [self._value(r) for r in self.graph.returns]

    def _start(self, node: Node, token: int) -> None:
        attributes = started(node.op.name.removeprefix("dist."), node.op.literals, token)
        operands = [self._value(o) for o in node.operands]
        (made,) = self.build.dist("dist.start", operands, node.op.results, attributes, node.location)
        self.under_way[node.results[0]] = node, made

    def _value(self, number: int) -> Value:
        if number in self.under_way:
            node, under_way = self.under_way.pop(number)
            (self.values[number],) = self.build.dist("dist.wait", [under_way], node.op.results, {}, node.location)
        elif (node := self.held.get(number)) is not None:
            for result in node.results:
                del self.held[result]
            self._emit(node)
        return self.values[number]

    def _emit(self, node: Node) -> None:
        operands = [self._value(o) for o in node.operands]
        types = [self.graph.types[r] for r in node.results]
        self.values.update(zip(node.results, self.build.op(node.op, operands, types, node.location), strict=True))
