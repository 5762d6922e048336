"""`python -m samite.testing.fuzz`: a long run. Ends with the smallest program that fails, or with a count."""

from __future__ import annotations

import logging
import time
from typing import Annotated

import typer
from hypothesis import HealthCheck, given, note, seed, settings
from rich.progress import Progress

from samite.testing.fuzz.check import check
from samite.testing.fuzz.programs import Program, programs

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def main(
    number: Annotated[int, typer.Option("--programs", min=1, help="How many programs.")] = 10_000,
    start: Annotated[int, typer.Option("--seed", help="Another seed, other programs.")] = 0,
) -> None:
    logging.getLogger("samite").setLevel(logging.ERROR)  # that a program is not placed needs no saying
    began = time.monotonic()
    with Progress() as progress:
        bar = progress.add_task("programs", total=number)

        @seed(start)
        @settings(
            max_examples=number,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(programs())
        def run(program: Program) -> None:
            note(program.script)
            check(program)
            progress.advance(bar)

        run()
    print(f"{number} programs, no difference ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    app()
