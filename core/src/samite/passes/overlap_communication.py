"""overlap_communication: a collective whose result is not needed at once runs beside the ops that do not need it.

It becomes `dist.start` where it stood and `dist.wait` before what first computes with its result; the ops between that
only take it apart (a bucket's gradients) go there too. Nothing else moves: `bucket_collectives` has put each collective
where its bucket is full. A collective with nothing to do meanwhile stays as it is.
"""

from __future__ import annotations

from samite.ir.asynchronous import started
from samite.ir.build import Builder, Value, rewrite
from samite.ir.graph import Graph, Node
from samite.ir.module import Module
from samite.passes.traffic import is_collective

__all__ = ["OverlapCommunication"]

_PARTS = frozenset(("aten.split_with_sizes", "aten.view"))


class OverlapCommunication:
    name = "overlap_communication"

    def run(self, module: Module) -> Module:
        return rewrite(module, lambda graph, build: _Overlap(graph, build).run())


class _Overlap:
    def __init__(self, graph: Graph, build: Builder) -> None:
        self.graph, self.build, self.users = graph, build, graph.users()
        self.values: dict[int, Value] = dict(enumerate(build.arguments))
        self.under_way: dict[int, tuple[Node, Value]] = {}  # by the number of the result
        self.held: dict[int, Node] = {}  # ops that take apart what is under way, by the numbers of their results

    def run(self) -> list[Value]:
        for index, node in enumerate(self.graph.nodes):
            if is_collective(node) and self._first_use(node) > index + 1 + self._parts(node):
                self._start(node, token=index)
            elif node.op.name in _PARTS and any(o in self.under_way or o in self.held for o in node.operands):
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

    def _first_use(self, node: Node) -> int:
        """The index of the first op that computes with what a node gives; past the last one if the function returns it,
        -1 if nobody uses it."""
        users = [user for result in node.results for user in self.users[result]]
        return min((self._use(user) for user in users), default=-1)

    def _use(self, user: int) -> int:
        if user < len(self.graph.nodes) and (node := self.graph.nodes[user]).op.name in _PARTS:
            return self._first_use(node)
        return user

    def _parts(self, node: Node) -> int:
        """How many ops take apart what a node gives."""
        users = {user for result in node.results for user in self.users[result] if user < len(self.graph.nodes)}
        taking = [self.graph.nodes[user] for user in users if self.graph.nodes[user].op.name in _PARTS]
        return sum(1 + self._parts(each) for each in taking)
