"""A result as a table, for the terminal and for the documentation."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.results import Figure, Goal, Result

__all__ = ["Rows", "figures", "goals", "markdown", "number", "show"]

Rows = tuple[list[str], list[list[str]]]
"""Header and lines. The first column is text, the others are numbers."""


def number(value: float) -> str:
    """Three significant digits, whole numbers whole: "0.0123", "4.57", "289", "1,234"."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}"


def figures(result: Result) -> Rows:
    """A line a figure with its spread; or, if there are series, a line a name and a column a series, of medians."""
    series = list(dict.fromkeys(f.series for f in result.figures))
    unit = result.figures[0].unit
    if series == [""]:
        header = ["", f"median, {unit}", "middle half", "samples"]
        if any(f.beside for f in result.figures):
            header.append("speed")
        return header, [_line(result, f)[: len(header)] for f in result.figures]
    names = list(dict.fromkeys(f.name for f in result.figures))
    cells = {(f.name, f.series): number(f.median) for f in result.figures}
    return [f"median, {unit}", *series], [[name, *(cells.get((name, s), "") for s in series)] for name in names]


def _line(result: Result, figure: Figure) -> list[str]:
    low, high = figure.quartiles
    beside = result.figure(figure.beside, figure.series)
    ratio = f"{number(beside.median / figure.median)} × {beside.name}" if beside else ""
    return [figure.name, number(figure.median), f"{number(low)}–{number(high)}", str(len(figure.samples)), ratio]


def goals(found: list[Goal]) -> Rows:
    sign = {"at least": "≥", "at most": "≤"}
    return ["", "to reach", "figure", "reached"], [
        [g.what, f"{sign[g.bound]} {g.target:g} {g.unit}", f"{number(g.figure)} {g.unit}", "yes" if g.reached else "no"]
        for g in found
    ]


def markdown(rows: Rows) -> list[str]:
    header, lines = rows
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return ["| " + " | ".join(cells) + " |" for cells in (header, ruler, *lines)]


def show(result: Result) -> None:
    console = Console()
    for title, rows in ((result.name, figures(result)), ("goals", goals(result.goals))):
        if rows[1]:
            table = Table(title=title)
            for index, column in enumerate(rows[0]):
                table.add_column(column, justify="right" if index else "left")
            for line in rows[1]:
                table.add_row(*line)
            console.print(table)
    for what, why in (result.absent | result.facts).items():
        console.print(f"{what}: {why}", markup=False)
