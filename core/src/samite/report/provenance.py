"""Which collectives a tensor owes its layout to: the ones its gradient or new value came through, or its use needs.

A value is followed through ops that move, add or scale elements, and through the arithmetic of the optimizer; an op
that computes something new (a matmul, a norm) ends the way. So a weight's gradient is found to come from one all_reduce
over "dp", even inside a bucket with others, and not from those that the activations went through before.
"""

from __future__ import annotations

from samite.ir.graph import Graph, Node
from samite.passes.traffic import is_collective

__all__ = ["Provenance"]

_MOVES = (
    *("aten.view", "aten.t", "aten.transpose.int", "aten.permute", "aten.squeeze.dim", "aten.unsqueeze"),
    *("aten.expand", "aten.slice.Tensor", "aten.select.int", "aten.clone", "aten._to_copy"),
    *("aten.split_with_sizes", "aten.cat", "dist.shard", "dist.wait"),
)
_LINEAR = (
    *("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.where.self"),
    *("aten.mul.Scalar", "aten.div.Scalar", "aten.neg"),
)
_SCATTERS = ("aten.embedding_dense_backward",)
"""Ops that put the rows of their first operand elsewhere."""
_WHOLE = -1  # a value by itself, not one part of a bucket


class Provenance:
    """Of one partitioned function. Collectives are named by the indices of their nodes, in program order."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._users = graph.users()
        self._maker = {v: (i, part) for i, node in enumerate(graph.nodes) for part, v in enumerate(node.results)}

    def behind(self, value: int) -> tuple[int, ...]:
        """The collectives that `value` came through."""
        found: set[int] = set()
        seen: set[tuple[int, int]] = set()
        stack = [(value, _WHOLE, "")]
        while stack:
            value, part, phase = stack.pop()
            if value not in self._maker or (value, part) in seen:
                continue
            seen.add((value, part))
            index, position = self._maker[value]
            node = self.graph.nodes[index]
            if is_collective(node):
                found.add(index)
            elif node.op.name == "aten.split_with_sizes":
                part = position
            elif node.op.name not in _MOVES:
                # From the update back to the gradients, never from there to what the forward computed. What only moves
                # elements has no say: a bucket holds values of several phases.
                now = node.source.phase
                if phase not in ("", now) and (phase, now) != ("update", "backward"):
                    continue
                phase = now
            stack += [(operand, part, phase) for operand in self._followed(node, value, part)]
        return tuple(sorted(found))

    def ahead(self, argument: int) -> tuple[int, ...]:
        """The collectives that an argument goes through before it is first computed with."""
        found: set[int] = set()
        stack, seen = [argument], {argument}
        while stack:
            for index in self._users[stack.pop()]:
                if index == len(self.graph.nodes):
                    continue  # the function's return
                node = self.graph.nodes[index]
                if is_collective(node):
                    found.add(index)
                elif node.op.name not in _MOVES or node.op.name == "aten.cat":
                    continue
                stack += [result for result in node.results if result not in seen]
                seen.update(node.results)
        return tuple(sorted(found))

    def _followed(self, node: Node, value: int, part: int) -> list[int]:
        """The operands that `value`, a result of `node`, is made of."""
        if is_collective(node) or node.op.name in _MOVES:
            bucket = node.op.name == "aten.cat" and 0 <= part < len(node.operands)
            return [node.operands[part]] if bucket else list(node.operands)
        if node.op.name in _SCATTERS:
            return [node.operands[0]]
        if node.op.name in _LINEAR or node.source.phase == "update":
            shape = self.graph.types[value].shape
            return [operand for operand in node.operands if self.graph.types[operand].shape == shape]
        return []
