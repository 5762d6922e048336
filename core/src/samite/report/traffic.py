"""The table of collectives: what a program moves, along which axis, and the source line that caused it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from samite.api.program import Built
from samite.passes.traffic import collectives
from samite.report.functions import Function, functions_of
from samite.report.provenance import Provenance

__all__ = ["CollectiveRow", "collective_rows", "collective_table"]


@dataclass(frozen=True)
class CollectiveRow:
    """`count` collectives of one line that are alike. `nbytes` is what a rank receives in one of them.

    `line` is the user's ("train.py:41"), `others` are those of what travels with it; `phase` is "forward", "backward"
    or "update". `shape` and `dtype` are of the local operand. What travels in it, by name: `updates` is state whose
    gradient or new value does, `uses` is state that is brought together to be computed with, `results` are outputs. All
    are empty for activations. `inside` names what is around it, outermost first: a stage of a pipeline ("stage 1"),
    control flow ("scan").
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
    return collective_rows(built, functions_of(built.program))


def collective_rows(built: Built, functions: Sequence[Function]) -> tuple[CollectiveRow, ...]:
    """`collective_table` over the program's functions, if they have been read already."""
    rows: dict[CollectiveRow, CollectiveRow] = {}
    for row in (row for function in functions for row in _of_function(built, function)):
        known = rows.get(row)
        rows[row] = row if known is None else replace(known, count=known.count + row.count)
    return tuple(rows.values())


def _of_function(built: Built, function: Function) -> Iterator[CollectiveRow]:
    cargo = _cargo(built, function)
    stage = (f"stage {function.stage}",) if function.stage >= 0 else ()
    for each in collectives(function.graph, built.program.mesh):
        yield CollectiveRow(
            verb=each.verb,
            axes=each.axes,
            count=each.times * function.times,
            nbytes=each.nbytes,
            shape=each.shape,
            dtype=each.dtype,
            phase=each.source.phase,
            line=each.source.line,
            others=each.source.others,
            updates=tuple(cargo.updates.get(each.node, ())),
            uses=tuple(cargo.uses.get(each.node, ())),
            results=tuple(cargo.results.get(each.node, ())),
            inside=(*stage, *each.inside),
        )


@dataclass
class _Cargo:
    """Names by the index of the collective that they travel in. Optimizer state goes where its parameter does, and is
    not named."""

    updates: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    uses: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    results: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))


def _cargo(built: Built, function: Function) -> _Cargo:
    graph, arguments = function.graph, built.program.arguments
    provenance, cargo = Provenance(graph), _Cargo()
    owned = {index for index, at in function.arguments.items() if graph.arguments[at].owner}
    for index, at in function.arguments.items():
        if arguments[index].kind == "state" and index not in owned:
            for collective in provenance.ahead(at):
                cargo.uses[collective].append(arguments[index].name)
    for number, value in function.results.items():
        result = built.program.results[number]
        if result.alias not in owned:
            names = cargo.results if result.alias < 0 else cargo.updates
            for at in provenance.behind(value):
                names[at].append(result.name)
    return cargo
