"""A training step of a small GPT: DistributedDataParallel and DTensor beside Samite, two processes of one thread each.

All sides live at once and take turns, a round each, so that the machine's drift falls on all alike. Before anything is
timed, every side trains the first steps from the same weights on the same data, and their losses must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.peers import Side
from benchmarks.results import RESULTS, Conditions, Figure, Goal, Result
from benchmarks.rounds import measure
from benchmarks.sides import SIDES
from benchmarks.tables import show
from benchmarks.workload import Workload

__all__ = ["compare", "main"]

BESIDE = {
    "ddp-fused": "ddp",
    "samite-dp": "ddp",
    "samite-dp-inductor": "ddp",
    "dtensor-fused": "dtensor",
    "samite-tp": "dtensor",
    "samite-tp-inductor": "dtensor",
}
"""What each side is compared with."""
GOALS = {"samite-tp": 3.5, "samite-dp": 1.0}
"""How many times faster than that it is to be."""


def compare(
    sides: Mapping[str, Side], workload: Workload, *, rounds: int, steps: int, warmup: int, conditions: Conditions
) -> Result:
    """What `measure` finds of the sides, as a result."""
    measured = measure(sides, workload, rounds=rounds, steps=steps, warmup=warmup)
    samples = measured.samples
    figures = {key: Figure(sides[key].name, "ms", ms, beside=_beside(key, samples)) for key, ms in samples.items()}
    goals = [
        Goal(f"{f.name} against {f.beside}", "at least", GOALS[key], "×", figures[BESIDE[key]].median / f.median)
        for key, f in figures.items()
        if key in GOALS and f.beside
    ]
    facts = {"workload": str(workload), "loss of the first steps": [round(x, 5) for x in measured.losses]}
    absent = {sides[key].name: reason for key, reason in measured.absent.items()}
    return Result("gpt_step", conditions, list(figures.values()), goals, absent, facts)


def _beside(key: str, measured: Mapping[str, object]) -> str:
    other = BESIDE.get(key, "")
    return SIDES[other].name if other in measured else ""


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of all sides.")] = 20,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of a side in a round.")] = 10,
    warmup: Annotated[int, typer.Option(min=3, help="First steps, whose losses must agree.")] = 10,
    side: Annotated[list[str] | None, typer.Option(help=f"Only these of: {', '.join(SIDES)}.")] = None,
    output: Annotated[Path, typer.Option(help="Where the samples go.")] = RESULTS / "gpt_step.json",
) -> None:
    if unknown := sorted({*(side or ())} - SIDES.keys()):
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(SIDES)}", param_hint="--side")
    chosen = {key: made for key, made in SIDES.items() if not side or key in side}
    conditions = Conditions.here("gpt_step")
    result = compare(chosen, Workload(), rounds=rounds, steps=steps, warmup=warmup, conditions=conditions)
    show(result)
    result.write(output)


if __name__ == "__main__":
    typer.run(main)
