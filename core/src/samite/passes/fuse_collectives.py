"""fuse_collectives: fewer and smaller collectives with the same result.

- equal collectives of one value become one, but for gathers of several phases: what `place` gathers anew for the
  backward pass is not to be kept since the forward pass;
- all_reduces over several axes in a row become one over all of them;
- an all_reduce that only a shard over the same axes uses becomes a reduce_scatter;
- a shard of what was just gathered, same axes and dim, is the value before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from samite.ir.build import Builder, Value, rewrite
from samite.ir.graph import Graph, Node, Op, intern_op
from samite.ir.module import Module
from samite.passes.dead_code import live

__all__ = ["FuseCollectives"]


class FuseCollectives:
    name = "fuse_collectives"

    def run(self, module: Module) -> Module:
        def body(graph: Graph, build: Builder) -> list[Value]:
            graph = _unified(graph)
            graph = _sweep(graph, _Fuser(graph, module.mesh).fuse)
            return build.inline_all(graph, live(graph))

        return rewrite(module, body)


def _sweep(graph: Graph, visit: Callable[[Node], Node | int]) -> Graph:
    """The graph with each op of the dialect replaced by the one that `visit` gives for it. It may also give the number
    of the value that the result is; the op is dead then."""
    same: dict[int, int] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node = replace(node, operands=tuple(same.get(o, o) for o in node.operands))
        found = visit(node) if node.op.name.startswith("dist.") else node
        if isinstance(found, int):
            same[node.results[0]] = found
        else:
            node = found
        nodes.append(node)
    return replace(graph, nodes=nodes, returns=tuple(same.get(r, r) for r in graph.returns))


def _unified(graph: Graph) -> Graph:
    """With equal ops on equal values once. This comes first: what follows asks whether an op is a value's only user."""
    known: dict[tuple[Op, tuple[int, ...], str], int] = {}

    def first(node: Node) -> int:
        phase = node.source.phase if node.op.name == "dist.all_gather" else ""
        return known.setdefault((node.op, node.operands, phase), node.results[0])

    return _sweep(graph, first)


class _Fuser:
    def __init__(self, graph: Graph, mesh: Mapping[str, int]) -> None:
        self.mesh = mesh
        self.users = graph.users()
        self.made_by: dict[int, Node] = {}

    def fuse(self, node: Node) -> Node | int:
        node = self._merge_reduces(node) or self._scatter(node) or node
        self.made_by[node.results[0]] = node
        before = self._before_gather(node)
        return node if before is None else before

    def _reduced(self, node: Node) -> Node | None:
        """The all_reduce that made the operand, if nobody else uses its result."""
        source = self.made_by.get(node.operands[0]) if node.operands else None
        if source is None or source.op.name != "dist.all_reduce" or len(self.users[source.results[0]]) != 1:
            return None
        return source

    def _merge_reduces(self, node: Node) -> Node | None:
        source = self._reduced(node) if node.op.name == "dist.all_reduce" else None
        if source is None or source.op.literals["reduce_type"] != node.op.literals["reduce_type"]:
            return None
        axes = {*source.op.literals["axes"], *node.op.literals["axes"]}
        if len(axes) < len(source.op.literals["axes"]) + len(node.op.literals["axes"]):
            return None  # reduced twice over one axis, which is not the same as once
        return _as(node, node.op.name, source.operands, axes=tuple(axis for axis in self.mesh if axis in axes))

    def _scatter(self, node: Node) -> Node | None:
        source = self._reduced(node) if node.op.name == "dist.shard" else None
        if source is None or set(source.op.literals["axes"]) != set(node.op.literals["axes"]):
            return None
        return _as(node, "dist.reduce_scatter", source.operands, reduce_type=source.op.literals["reduce_type"])

    def _before_gather(self, node: Node) -> int | None:
        source = self.made_by.get(node.operands[0]) if node.op.name == "dist.shard" else None
        if source is None or source.op.name != "dist.all_gather" or source.op.literals != node.op.literals:
            return None
        return source.operands[0]


def _as(node: Node, name: str, operands: tuple[int, ...], **attributes: Any) -> Node:
    """The node as another op over other operands of the same types, with these attributes beside its own."""
    op = node.op
    made = intern_op(name, op.form, op.operands, op.results, tuple(sorted({**op.literals, **attributes}.items())))
    return replace(node, op=made, operands=operands)
