"""A training step of a small GPT: DistributedDataParallel and DTensor beside Samite, two processes of one thread each.

All sides live at once and take turns, a round each, so that the machine's drift falls on all alike. Before anything is
timed, every side trains the first steps from the same weights on the same data, and their losses must agree.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from benchmarks.peers import Absent, Peers, Side
from benchmarks.results import RESULTS, Conditions, Figure, Goal, Result
from benchmarks.sides import SIDES
from benchmarks.tables import show
from benchmarks.workload import Workload

__all__ = ["compare", "main"]

TOLERANCE = 1e-3
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
    """Rounds of `steps` timed steps a side, each after one that is not timed, since caches hold the side before.

    Raises RuntimeError if losses of the `warmup` steps differ by more than `TOLERANCE` from the first side's.
    """
    samples: dict[str, list[float]] = {}
    absent: dict[str, str] = {}
    first: list[float] = []
    with ExitStack() as stack:
        present: dict[str, Peers] = {}
        for key, side in sides.items():  # one after the other: compiling side by side would take as long
            peers = Peers(side, workload)
            stack.callback(peers.close)
            try:
                peers.wait_built()
                losses = peers.run(warmup).losses
            except Absent as reason:
                absent[side.name] = str(reason)
                continue
            first = first or losses
            _check(side.name, losses, first)
            present[key] = peers
        for _ in track(range(rounds), description="rounds", disable=not sys.stderr.isatty()):
            for key, peers in present.items():
                samples.setdefault(key, []).extend(peers.run(steps + 1).milliseconds[1:])
    figures = {key: Figure(sides[key].name, "ms", ms, beside=_beside(key, samples)) for key, ms in samples.items()}
    goals = [
        Goal(f"{f.name} against {f.beside}", "at least", GOALS[key], "×", figures[BESIDE[key]].median / f.median)
        for key, f in figures.items()
        if key in GOALS and f.beside
    ]
    facts = {"workload": str(workload), "loss of the first steps": [round(x, 5) for x in first]}
    return Result("gpt_step", conditions, list(figures.values()), goals, absent, facts)


def _beside(key: str, measured: Mapping[str, object]) -> str:
    other = BESIDE.get(key, "")
    return SIDES[other].name if other in measured else ""


def _check(name: str, losses: Sequence[float], expected: Sequence[float]) -> None:
    if not all(abs(a - b) <= TOLERANCE for a, b in zip(losses, expected, strict=True)):
        raise RuntimeError(f"{name} computes something else: losses {losses}, the first side's are {expected}")


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
