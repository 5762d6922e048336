"""What a loop need not put together, since it was never apart but in the program."""

from __future__ import annotations

from samite.ir.build import Builder, Value, rewrite
from samite.ir.graph import Graph, Node
from samite.ir.module import Module
from samite.passes.split_microbatches import MICROBATCH
from samite.passes.stages.turns import is_cut

__all__ = ["whole"]


def whole(module: Module) -> Module:
    """The module with every gather of the microbatches of a value replaced by the value that they were cut from: an
    input that is returned, or read as a whole. No stage makes the terms of such a gather, since cutting is reading."""
    return rewrite(module, _rewrite, regions=False)


def _rewrite(graph: Graph, build: Builder) -> list[Value]:
    values: dict[int, Value] = dict(enumerate(build.arguments))
    cuts = {node.results[0]: node for node in graph.nodes if is_cut(node)}
    for node in graph.nodes:
        cut = cuts.get(node.operands[0]) if node.operands else None
        if cut is not None and _is_gather(node, cut):
            values[node.results[0]] = values[cut.operands[0]]
            continue
        types = [graph.types[r] for r in node.results]
        made = build.op(node.op, [values[o] for o in node.operands], types, node.location, node.layouts)
        values.update(zip(node.results, made, strict=True))
    return [values[r] for r in graph.returns]


def _is_gather(node: Node, cut: Node) -> bool:
    literals = node.op.literals
    is_gather = node.op.name == "dist.all_gather" and literals["axes"] == (MICROBATCH,)
    return is_gather and literals["dim"] == cut.op.literals["dim"]
