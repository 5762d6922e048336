"""Which ops of a function anybody uses. All ops are pure, so the others can go."""

from __future__ import annotations

from samite.ir.graph import Graph

__all__ = ["live"]


def live(graph: Graph) -> list[bool]:
    """For every node whether a return depends on it."""
    used = [False] * len(graph.types)
    for value in graph.returns:
        used[value] = True
    keep = [False] * len(graph.nodes)
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        if any(used[r] for r in node.results):
            keep[index] = True
            for operand in node.operands:
                used[operand] = True
    return keep
