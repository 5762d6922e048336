"""Reports as what rich can print."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from samite.report.partition import PartitionRow, condense
from samite.report.summary import Report
from samite.report.traffic import CollectiveRow

__all__ = ["collectives_as_text", "console", "partition_as_text", "plain_table", "report_as_text"]

WIDTH = 160
"""Columns that a report takes without folding a name."""


def report_as_text(report: Report) -> RenderableType:
    """The whole report: header, partition table, collectives, verdict."""
    return Group(
        _header(report),
        "",
        partition_as_text(report.partition),
        "",
        collectives_as_text(report.collectives),
        "",
        Text(report.verdict, style="bold"),
    )


def console(*, stderr: bool = False) -> Console:
    """Where reports are printed: as wide as the terminal, or wide enough for the tables where there is none."""
    made = Console(stderr=stderr, highlight=False)
    # Not `is_terminal`: FORCE_COLOR makes that true of a pipe, whose width nobody knows.
    if not made.file.isatty() and "COLUMNS" not in os.environ:
        made.width = WIDTH
    return made


def plain_table(title: str, *columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table in the one style that all of Samite's tables have; the columns of `right` hold numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="dim", pad_edge=False)
    table.collapse_padding = True
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def partition_as_text(rows: Sequence[PartitionRow]) -> RenderableType:
    """One row for tensors that differ in nothing but numbers; state that lies like its parameter is counted with it."""
    table = plain_table(
        "Partition",
        *("tensor", "shape", "split\ndim", "parts", "layout", "local", "bytes", "collective"),
        right=("bytes",),
    )
    shown = condense(rows)
    for row in shown:
        table.add_row(
            Text(row.name) + Text(f" ×{row.count}" if row.count > 1 else "", style="dim"),
            _listed(row.shape) or "scalar",
            _listed(row.split_dims),
            "×".join(map(str, row.parts)),
            Text(row.layout),
            _listed(row.local_shape) or "scalar",
            decimal(row.rank_bytes),
            ", ".join(row.collectives),
        )
    note = "bytes: what one rank holds"
    if alike := sorted({name for row in shown for name in row.alike}):
        note += f", with the state that lies like its parameter ({', '.join(alike)})"
    return Group(table, Text(note, style="dim"))


def collectives_as_text(rows: Sequence[CollectiveRow]) -> RenderableType:
    """One row for collectives of one line that are alike. Bytes are what a rank receives."""
    if not rows:
        return Text("No collectives.")
    table = plain_table(
        "Collectives of one call",
        *("count", "collective", "axis", "bytes each", "total", "phase", "source line", "carries"),
        right=("count", "bytes each", "total"),
    )
    for row in rows:
        table.add_row(
            str(row.count),
            row.verb,
            "·".join(row.axes),
            decimal(row.nbytes),
            decimal(row.total_bytes),
            " in ".join((row.phase, *reversed(row.inside))),
            Text(row.line) + Text(f" +{len(row.others)} lines" if row.others else "", style="dim"),
            Text(_cargo(row)),
        )
    return table


def _cargo(row: CollectiveRow) -> str:
    cargo = [f"{row.dtype} [{_listed(row.shape)}]" if row.shape else row.dtype]
    for what, names in (("update", row.updates), ("use", row.uses)):
        if names:
            cargo.append(f"{what} of {names[0] if len(names) == 1 else f'{len(names)} tensors'}")
    return ", ".join([*cargo, *row.results])


def _header(report: Report) -> Text:
    ranks = f"{report.ranks} rank{'s' * (report.ranks > 1)}"
    passes = " · ".join(f"{p.name} {1e3 * p.seconds:.0f} ms" for p in report.passes)
    total = sum(p.seconds for p in report.passes)
    header = Text.assemble(
        (report.function, "bold"),
        f" on {report.mesh} ({ranks}, engine {report.engine}): program {report.program}, {report.ops} ops\n",
        (f"passes {total:.2f} s: {passes}", "dim"),
    )
    for each in report.passes:
        for note in each.notes:
            header.append(f"\n{each.name}: {note}")
    return header


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
