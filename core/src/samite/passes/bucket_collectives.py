"""bucket_collectives: all_reduces that can wait for one another travel as one.

Ops run in program order as long as they depend on no all_reduce that is held back. When nothing else can run, the
bucket opened last goes: it is the one that the program waits for. So the gradients of data parallelism meet before the
optimizer, while an activation that is needed at once goes alone. A bucket holds reductions of one kind over one set of
axes, by one algorithm, of one dtype.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import prod
from typing import Any

from samite.ir.build import Builder, Value, rewrite
from samite.ir.context import TensorType
from samite.ir.graph import Constant, Graph, ListOf, Node, Slot, joint_location
from samite.ir.module import Module
from samite.passes.traffic import itemsize

__all__ = ["BucketCollectives"]


_PHASES = ("", "forward", "backward", "update")


@dataclass(slots=True)
class _Bucket:
    nodes: list[Node] = field(default_factory=list["Node"])
    nbytes: int = 0


class BucketCollectives:
    """`bucket_bytes` is the size at which a bucket goes."""

    name = "bucket_collectives"

    def __init__(self, bucket_bytes: int = 25 << 20) -> None:
        self.bucket_bytes = bucket_bytes

    def run(self, module: Module) -> Module:
        return rewrite(module, lambda graph, build: _Bucketer(graph, build, self.bucket_bytes).run())


class _Bucketer:
    def __init__(self, graph: Graph, build: Builder, bucket_bytes: int) -> None:
        self.graph, self.build, self.limit = graph, build, bucket_bytes
        self.values: dict[int, Value] = {}
        self.open: dict[Any, _Bucket] = {}  # in the order in which they were opened
        self.users = graph.users()
        self.missing = [len(set(node.operands)) for node in graph.nodes]
        self.ready = [index for index, count in enumerate(self.missing) if count == 0]

    def run(self) -> list[Value]:
        for number, value in enumerate(self.build.arguments):
            self._made(number, value)
        while self.ready or self.open:
            if not self.ready:
                self._send(next(reversed(self.open)))
                continue
            node = self.graph.nodes[heapq.heappop(self.ready)]
            if node.op.name == "dist.all_reduce":
                self._hold(node)
                continue
            operands = [self.values[o] for o in node.operands]
            types = [self.graph.types[r] for r in node.results]
            made = self.build.op(node.op, operands, types, node.location)
            for result, value in zip(node.results, made, strict=True):
                self._made(result, value)
        return [self.values[r] for r in self.graph.returns]

    def _made(self, number: int, value: Value) -> None:
        self.values[number] = value
        for user in set(self.users[number]):
            if user < len(self.missing):
                self.missing[user] -= 1
                if self.missing[user] == 0:
                    heapq.heappush(self.ready, user)

    def _hold(self, node: Node) -> None:
        type = node.op.operands[0]
        key = (node.op.attributes, type.dtype)
        bucket = self.open.setdefault(key, _Bucket())
        bucket.nodes.append(node)
        bucket.nbytes += prod(type.shape) * itemsize(type.dtype)
        if bucket.nbytes >= self.limit:
            self._send(key)

    def _send(self, key: Any) -> None:
        nodes = self.open.pop(key).nodes
        made = self._alone(nodes[0]) if len(nodes) == 1 else self._together(nodes)
        for node, value in zip(nodes, made, strict=True):
            self._made(node.results[0], value)

    def _alone(self, node: Node) -> list[Value]:
        operand = self.values[node.operands[0]]
        return list(self.build.op(node.op, [operand], node.op.results, node.location))

    def _together(self, nodes: list[Node]) -> list[Value]:
        """Flattened, joined, reduced, and cut apart again."""
        build, last = self.build, nodes[-1]
        # A loss goes with the gradients: then it is theirs that the bucket waits for.
        phases = sorted(nodes, key=lambda node: _PHASES.index(node.source.phase))
        location = joint_location([node.location for node in phases])
        sizes = [prod(n.op.operands[0].shape) for n in nodes]
        dtype = last.op.operands[0].dtype
        flat = [
            self._view(self.values[node.operands[0]], TensorType((size,), dtype), node)
            for node, size in zip(nodes, sizes, strict=True)
        ]
        whole = TensorType((sum(sizes),), dtype)
        listed = ListOf("!torch.list<vtensor>", tuple(Slot(i) for i in range(len(flat))))
        joined = build.torch("aten.cat", (listed, Constant.of(0)), flat, [whole], location)
        reduced = build.dist("dist.all_reduce", joined, [whole], last.op.literals, location)
        counts = ListOf("!torch.list<int>", tuple(Constant.of(size) for size in sizes))
        parts = build.torch(
            "aten.split_with_sizes",
            (Slot(0), counts, Constant.of(0)),
            reduced,
            [TensorType((size,), dtype) for size in sizes],
            location,
        )
        return [self._view(part, node.op.results[0], node) for part, node in zip(parts, nodes, strict=True)]

    def _view(self, value: Value, type: TensorType, node: Node) -> Value:
        if len(node.op.results[0].shape) == 1:  # a vector lies in the bucket as it is
            return value
        shape = ListOf("!torch.list<int>", tuple(Constant.of(n) for n in type.shape))
        return self.build.torch("aten.view", (Slot(0), shape), [value], [type], node.location)[0]
