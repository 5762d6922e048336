"""`python -m samite.testing.opinfo docs/ops.json`: sweep the database into a file; again, and it goes on."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from samite.report import console
from samite.testing.opinfo.database import entries, names
from samite.testing.opinfo.store import Store
from samite.testing.opinfo.sweep import Effort
from samite.testing.opinfo.workers import sweep_all

OFTEN = 20
"""Entries after which the file is written."""


def main(
    file: Annotated[Path, typer.Argument(help="Where the records go.")],
    only: Annotated[str, typer.Option(metavar="PATTERN", help="Only these entries.")] = "*",
    samples: Annotated[int, typer.Option(min=1, help="Of each entry.")] = 6,
    placements: Annotated[int, typer.Option(min=1, help="Of each sample and mesh.")] = 6,
    seed: Annotated[int, typer.Option(help="What to draw of them.")] = 0,
    dtensor: Annotated[bool, typer.Option(help="Have DTensor try the same.")] = True,
    processes: Annotated[int, typer.Option("-n", "--processes", min=1)] = os.cpu_count() or 1,
) -> None:
    """Sweep PyTorch's op database. What the file has already of this code, torch and effort is not tried again."""
    effort = Effort(samples, placements, seed, dtensor)
    store = Store.resume(file, effort)
    todo = [name for name in names(only) if name not in store.records]
    with Progress(console=console(stderr=True)) as progress:
        bar = progress.add_task("op database", total=len(todo))
        try:
            for number, record in enumerate(sweep_all(todo, effort, processes, alone=store.dtensor)):
                store.add(record)
                progress.advance(bar)
                if number % OFTEN == 0:
                    store.save(entries())
        finally:
            store.save(entries())
    count = Counter(record.samite.verdict() for record in store.records.values())
    console().print(", ".join(f"{number} {verdict}" for verdict, number in count.most_common()))


typer.run(main)
