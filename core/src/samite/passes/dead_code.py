"""Which ops of a function anybody uses. All ops are pure, so the others can go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from samite.ir.graph import Graph, Node

__all__ = ["live"]


def live(graph: Graph, operands: Callable[[Node], Sequence[int]] = attrgetter("operands")) -> list[bool]:
    """For every node whether a return depends on it; a node depends on its `operands`."""
    used = [False] * len(graph.types)
    for value in graph.returns:
        used[value] = True
    keep = [False] * len(graph.nodes)
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        if any(used[r] for r in node.results):
            keep[index] = True
            for operand in operands(node):
                used[operand] = True
    return keep
