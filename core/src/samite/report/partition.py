"""The partition table: how every tensor that goes into or comes out of a program lies on the mesh."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from samite.api.program import Built
from samite.ir.graph import Graph
from samite.layout import Layout
from samite.passes.traffic import itemsize
from samite.report.functions import Function, functions_of
from samite.report.provenance import Provenance
from samite.report.words import parts, words

__all__ = ["PartitionRow", "condense", "partition_rows", "partition_table"]

RowKind = Literal["state", "input", "scalar", "rng", "result"]


@dataclass(frozen=True)
class PartitionRow:
    """One tensor, or several that differ only in the numbers in their names (`count`; "*" stands for the numbers).

    `split_dims` are the dims that are split, `parts` in how many parts each; `layout` says how in the words of
    placements. `local_shape` is that of one rank's buffer, padding included, and `rank_bytes` what a rank holds of all
    tensors of the row; `home` are the axes and indices of the ranks that do, if they are not all. `collectives` are
    those that its gradient, its new value or its use needs ("all_reduce dp"). `owner` is the parameter that a gradient
    or optimizer state belongs to; `alike` are the states of the tensor itself that lie as it does, and that are counted
    with it in a condensed table.
    """

    name: str
    kind: RowKind
    dtype: str
    shape: tuple[int, ...]
    split_dims: tuple[int, ...]
    parts: tuple[int, ...]
    layout: str
    local_shape: tuple[int, ...]
    rank_bytes: int
    collectives: tuple[str, ...]
    owner: str = ""
    count: int = 1
    alike: tuple[str, ...] = ()
    home: tuple[tuple[str, int], ...] = ()


def partition_table(built: Built) -> tuple[PartitionRow, ...]:
    """A row for every argument of the program, in order, and for every result that replaces no argument."""
    return partition_rows(built, functions_of(built.program))


def partition_rows(built: Built, functions: Sequence[Function]) -> tuple[PartitionRow, ...]:
    """`partition_table` over the program's functions, if they have been read already."""
    program, provenances = built.program, [Provenance(function.graph) for function in functions]
    replaced = {result.alias: at for at, result in enumerate(program.results) if result.alias >= 0}

    def ahead(argument: int) -> Iterator[str]:
        for function, provenance in zip(functions, provenances, strict=True):
            if argument in function.arguments:
                yield from _spelled(function.graph, provenance.ahead(function.arguments[argument]))

    def behind(result: int) -> Iterator[str]:
        for function, provenance in zip(functions, provenances, strict=True):
            if result in function.results:
                yield from _spelled(function.graph, provenance.behind(function.results[result]))

    rows: list[PartitionRow] = []
    for index, argument in enumerate(program.arguments):
        found = [*ahead(index), *(behind(replaced[index]) if index in replaced else ())]
        row = _row(argument.name, argument.kind, argument.dtype, argument.layout, program.mesh, found)
        rows.append(replace(row, owner=_owner(functions, index)))
    for index, result in enumerate(program.results):
        if result.alias < 0:
            rows.append(_row(result.name, "result", result.dtype, result.layout, program.mesh, [*behind(index)]))
    return tuple(rows)


def _owner(functions: Sequence[Function], argument: int) -> str:
    known = (f.graph.arguments[f.arguments[argument]].owner for f in functions if argument in f.arguments)
    return next(known, "")


def _spelled(graph: Graph, collectives: Sequence[int]) -> Iterator[str]:
    for op in (graph.nodes[index].op for index in collectives):
        yield f"{op.name.removeprefix('dist.')} {'·'.join(op.literals['axes'])}"


def _row(
    name: str, kind: RowKind, dtype: str, layout: Layout, mesh: Mapping[str, int], collectives: Sequence[str]
) -> PartitionRow:
    split, local = parts(layout, mesh), layout.local_shape(mesh)
    return PartitionRow(
        name=name,
        kind=kind,
        dtype=dtype,
        shape=layout.shape,
        split_dims=tuple(split),
        parts=tuple(split.values()),
        layout=words(layout, mesh),
        local_shape=local,
        rank_bytes=prod(local) * itemsize(dtype),
        collectives=tuple(dict.fromkeys(collectives)),
        home=layout.canonical(mesh).at,
    )


def condense(rows: Sequence[PartitionRow]) -> tuple[PartitionRow, ...]:
    """The table that people read: equal layers in one row, optimizer state with the parameter whose layout it shares.

    Nothing is lost but names and numbers: every tensor is counted in one row, and so are its bytes.
    """
    grouped: dict[tuple[object, ...], PartitionRow] = {}
    for row in _with_their_owners(rows):
        pattern = re.sub(r"\d+", "*", row.name)
        key = (pattern, row.kind, row.dtype, row.shape, row.layout, row.collectives, row.alike)
        if (known := grouped.get(key)) is None:
            grouped[key] = row
        else:
            total = known.rank_bytes + row.rank_bytes
            grouped[key] = replace(known, name=pattern, count=known.count + 1, rank_bytes=total)
    return tuple(grouped.values())


def _with_their_owners(rows: Sequence[PartitionRow]) -> list[PartitionRow]:
    kept = {row.name: row for row in rows if not row.owner}
    others: list[PartitionRow] = []
    for row in rows:
        owner = kept.get(row.owner)
        # A step count is a number a parameter; it lies like anything.
        if owner and (row.shape == () or (row.shape, row.layout) == (owner.shape, owner.layout)):
            alike = (*owner.alike, row.name.rpartition(".")[2])
            kept[row.owner] = replace(owner, alike=alike, rank_bytes=owner.rank_bytes + row.rank_bytes)
        elif row.owner:
            others.append(row)
    return [*kept.values(), *others]
