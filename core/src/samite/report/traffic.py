"""The table of collectives: what a program moves, along which axis, and the source line that caused it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from samite.api.program import Built
from samite.ir.graph import Graph
from samite.ir.module import Module
from samite.passes.traffic import collectives
from samite.report.provenance import Provenance

__all__ = ["CollectiveRow", "collective_rows", "collective_table"]


@dataclass(frozen=True)
class CollectiveRow:
    """`count` collectives of one line that are alike. `nbytes` is what a rank receives in one of them.

    `line` is the user's ("train.py:41"), `others` are those of what travels with it; `phase` is "forward", "backward"
    or "update". `shape` and `dtype` are of the local operand. What travels in it, by name: `updates` is state whose
    gradient or new value does, `uses` is state that is brought together to be computed with, `results` are outputs. All
    are empty for activations. `inside` names the control flow around it ("scan"), outermost first.
    """

    verb: str
    axes: tuple[str, ...]
    count: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    phase: str
    line: str
    others: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """What a rank receives in all of them."""
        return self.count * self.nbytes


def collective_table(built: Built) -> tuple[CollectiveRow, ...]:
    """A row for all collectives that differ in nothing, in the order in which they are first met."""
    return collective_rows(built, Module.parse(built.program.module).graph)


def collective_rows(built: Built, graph: Graph) -> tuple[CollectiveRow, ...]:
    """`collective_table` over the program's function, if that has been read already."""
    cargo = _cargo(built, graph)
    rows: dict[CollectiveRow, CollectiveRow] = {}
    for each in collectives(graph, built.program.mesh):
        row = CollectiveRow(
            verb=each.verb,
            axes=each.axes,
            count=each.times,
            nbytes=each.nbytes,
            shape=each.shape,
            dtype=each.dtype,
            phase=each.source.phase,
            line=each.source.line,
            others=each.source.others,
            updates=tuple(cargo.updates.get(each.node, ())),
            uses=tuple(cargo.uses.get(each.node, ())),
            results=tuple(cargo.results.get(each.node, ())),
            inside=each.inside,
        )
        known = rows.get(row)
        rows[row] = row if known is None else replace(known, count=known.count + each.times)
    return tuple(rows.values())


@dataclass
class _Cargo:
    """Names by the index of the collective that they travel in. Optimizer state goes where its parameter does, and is
    not named."""

    updates: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    uses: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    results: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))


def _cargo(built: Built, graph: Graph) -> _Cargo:
    provenance, cargo = Provenance(graph), _Cargo()
    for index, argument in enumerate(built.program.arguments):
        if argument.kind == "state" and not graph.arguments[index].owner:
            for at in provenance.ahead(index):
                cargo.uses[at].append(argument.name)
    for result, value in zip(built.program.results, graph.returns, strict=True):
        if result.alias < 0 or not graph.arguments[result.alias].owner:
            names = cargo.results if result.alias < 0 else cargo.updates
            for at in provenance.behind(value):
                names[at].append(result.name)
    return cargo
