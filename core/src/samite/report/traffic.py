"""The table of collectives: what a program moves, along which axis, and the source line that caused it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from samite.api.program import Built
from samite.ir.graph import Graph
from samite.ir.module import Module
from samite.passes.traffic import collectives, is_collective
from samite.report.provenance import Provenance

__all__ = ["CollectiveRow", "collective_rows", "collective_table"]


@dataclass(frozen=True)
class CollectiveRow:
    """`count` collectives of one line that are alike. `nbytes` is what a rank receives in one of them.

    `line` is the user's ("train.py:41"); `phase` is "forward", "backward" or "update". `shape` and `dtype` are of the
    local operand. `states` names the state whose gradients or values travel in it, `results` what else goes to the
    caller; both are empty for activations.
    """

    verb: str
    axes: tuple[str, ...]
    count: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    phase: str
    line: str
    states: tuple[str, ...] = ()
    results: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """What a rank receives in all of them."""
        return self.count * self.nbytes


def collective_table(built: Built) -> tuple[CollectiveRow, ...]:
    """A row for all collectives that differ in nothing, in the order in which they are first met."""
    return collective_rows(built, Module.parse(built.program.module).graph)


def collective_rows(built: Built, graph: Graph) -> tuple[CollectiveRow, ...]:
    """`collective_table` over the program's function, if that has been read already."""
    states, results = _carried(built, graph)
    indices = [index for index, node in enumerate(graph.nodes) if is_collective(node)]
    rows: dict[Any, CollectiveRow] = {}
    for index, each in zip(indices, collectives(graph, built.program.mesh), strict=True):
        row = CollectiveRow(
            each.verb,
            each.axes,
            1,
            each.nbytes,
            each.shape,
            each.dtype,
            each.source.phase,
            each.source.line,
            tuple(states.get(index, ())),
            tuple(results.get(index, ())),
        )
        known = rows.get(row)
        rows[row] = row if known is None else replace(known, count=known.count + 1)
    return tuple(rows.values())


def _carried(built: Built, graph: Graph) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """For every collective the state and the other results that travel in it. Optimizer state goes where its parameter
    does, and is not named."""
    provenance = Provenance(graph)
    states: dict[int, list[str]] = {}
    results: dict[int, list[str]] = {}
    for result, value in zip(built.program.results, graph.returns, strict=True):
        if result.alias < 0:
            for index in provenance.behind(value):
                results.setdefault(index, []).append(result.name)
        elif not graph.arguments[result.alias].owner:
            for index in {*provenance.behind(value), *provenance.ahead(result.alias)}:
                states.setdefault(index, []).append(result.name)
    return states, results
