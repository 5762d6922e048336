"""From the layouts that are known to a placement of the whole function."""

from __future__ import annotations

from collections.abc import Sequence

from samite.ir.graph import Graph
from samite.layout import Layout
from samite.passes.placement.demands import improved
from samite.passes.placement.walk import Placement

__all__ = ["best_placement"]

ROUNDS = 3
"""How often users' demands are taken up; each round reaches arguments through one more op that had blocked them."""


def best_placement(
    graph: Graph,
    mesh: dict[str, int],
    given: Sequence[Layout | None],
    results: Sequence[Layout | None] | None,
    time: frozenset[str] = frozenset(),
) -> Placement:
    """Arguments that are `given` a layout keep it; `results` and `time` as `Place` takes them."""
    best = Placement(graph, mesh, given, {}, results, time)
    for _ in range(ROUNDS):
        better = improved(best)
        if better is None or better.moved > best.moved:
            break
        best = better
    return best
