"""fuse_collectives: fewer and smaller collectives with the same result.

- equal collectives of one value become one;
- all_reduces over several axes in a row become one over all of them;
- an all_reduce that only a shard over the same axes uses becomes a reduce_scatter;
- a shard of what was just gathered, same axes and dim, is the value before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samite.ir.build import Builder, Value, rewrite
from samite.ir.graph import Graph, Node, intern_op
from samite.ir.module import Module
from samite.passes.dead_code import live

__all__ = ["FuseCollectives"]


class FuseCollectives:
    name = "fuse_collectives"

    def run(self, module: Module) -> Module:
        return rewrite(module, lambda graph, build: _Fuser(graph).write(build))


class _Fuser:
    """Works on the graph's nodes: `same` maps a value to the one that now stands for it."""

    def __init__(self, graph: Graph) -> None:
        self.users = graph.users()
        self.made_by: dict[int, Node] = {}
        self.same: dict[int, int] = {}
        self.known: dict[tuple[Any, tuple[int, ...]], int] = {}
        nodes = [self._fused(node) for node in graph.nodes]
        self.graph = replace(graph, nodes=nodes, returns=tuple(self.same.get(r, r) for r in graph.returns))

    def _fused(self, node: Node) -> Node:
        node = replace(node, operands=tuple(self.same.get(o, o) for o in node.operands))
        if node.op.name.startswith("dist."):
            node = self._merge_reduces(node) or self._scatter(node) or node
            if self._is_ungathered(node):
                self.same[node.results[0]] = self.made_by[node.operands[0]].operands[0]
            key = (node.op, node.operands)
            if key in self.known:
                self.same[node.results[0]] = self.known[key]
            else:
                self.known[key] = node.results[0]
        for result in node.results:
            self.made_by[result] = node
        return node

    def _only_source(self, node: Node, name: str) -> Node | None:
        """The op that made the operand, if it is a `name` and nobody else uses its result."""
        source = self.made_by.get(node.operands[0]) if node.operands else None
        alone = source is not None and len(self.users[source.results[0]]) == 1
        return source if alone and source is not None and source.op.name == name else None

    def _merge_reduces(self, node: Node) -> Node | None:
        if node.op.name != "dist.all_reduce":
            return None
        source = self._only_source(node, "dist.all_reduce")
        if source is None or source.op.literals["reduce_type"] != node.op.literals["reduce_type"]:
            return None
        return _with(node, source.operands, axes=(*source.op.literals["axes"], *node.op.literals["axes"]))

    def _scatter(self, node: Node) -> Node | None:
        if node.op.name != "dist.shard":
            return None
        source = self._only_source(node, "dist.all_reduce")
        if source is None or set(source.op.literals["axes"]) != set(node.op.literals["axes"]):
            return None
        attributes = tuple(sorted({**node.op.literals, "reduce_type": source.op.literals["reduce_type"]}.items()))
        op = intern_op("dist.reduce_scatter", node.op.form, source.op.operands, node.op.results, attributes)
        return replace(node, op=op, operands=source.operands)

    def _is_ungathered(self, node: Node) -> bool:
        source = self.made_by.get(node.operands[0]) if node.op.name == "dist.shard" else None
        return source is not None and source.op.name == "dist.all_gather" and source.op.literals == node.op.literals

    def write(self, build: Builder) -> list[Value]:
        return build.inline_all(self.graph, live(self.graph))


def _with(node: Node, operands: tuple[int, ...], **changes: Any) -> Node:
    attributes = tuple(sorted({**node.op.literals, **changes}.items()))
    op = intern_op(node.op.name, node.op.form, node.op.operands, node.op.results, attributes)
    return replace(node, op=op, operands=operands)
