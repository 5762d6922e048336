"""A training step of a small GPT in a pipeline of two stages and eight microbatches, 1F1B, one thread a stage.

torch.distributed.pipelining beside Samite, on the same stages, and Samite beside its schedule's ideal: simulated from
the times that its functions take alone. All of them take turns, a round each; losses of the first steps must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.peers import Side
from benchmarks.pipeline_ideal import Functions
from benchmarks.pipeline_sides import MICROBATCHES, STAGES, samite_pipeline, torch_pipelining
from benchmarks.results import RESULTS, Conditions, Figure, Goal, Result
from benchmarks.rounds import Measured, measure
from benchmarks.sides import one_process
from benchmarks.tables import show
from benchmarks.workload import Workload
from samite.errors import SamiteError

__all__ = ["SIDES", "collect", "main"]

MODES = ("aten", "inductor")
SIDES = {
    "one": Side("PyTorch, one process of one thread, no microbatches", one_process),
    "torch": Side("torch.distributed.pipelining", torch_pipelining, STAGES),
    "aten": Side("Samite, ATen", partial(samite_pipeline, mode="aten")),
    "inductor": Side("Samite, Inductor", partial(samite_pipeline, mode="inductor"), absent_if=(SamiteError,)),
}
MOST = 1.15
"""How many times its ideal Samite's step may take."""


def collect(
    measured: Measured, ideals: Mapping[str, list[float]], conditions: Conditions, workload: Workload
) -> Result:
    """`ideals` are milliseconds by mode."""
    torch_side = SIDES["torch"].name
    figures: list[Figure] = []
    goals: list[Goal] = []
    for key, samples in measured.samples.items():
        found = Figure(SIDES[key].name, "ms", samples, beside=torch_side if key in MODES else "")
        figures.append(found)
        if key not in MODES:
            continue
        simulated = Figure(f"{found.name}: simulated ideal", "ms", ideals[key])
        figures.append(simulated)
        beside = next(f for f in figures if f.name == torch_side)
        goals += [
            Goal(
                f"pipeline, {found.name}: speed beside {torch_side}", "at least", 1, "×", beside.median / found.median
            ),
            Goal(
                f"pipeline, {found.name}: time beside its ideal", "at most", MOST, "×", found.median / simulated.median
            ),
        ]
    facts = {
        "workload": f"{workload}, {STAGES} stages, {MICROBATCHES} microbatches, 1F1B",
        "loss of the first steps": [round(x, 5) for x in measured.losses],
    }
    absent = {SIDES[key].name: reason for key, reason in measured.absent.items()}
    return Result("pipeline", conditions, figures, goals, absent, facts)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of all sides.")] = 20,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of a side in a round.")] = 10,
    warmup: Annotated[int, typer.Option(min=3, help="First steps, whose losses must agree.")] = 10,
    output: Annotated[Path, typer.Option(help="Where the samples go.")] = RESULTS / "pipeline.json",
) -> None:
    conditions, workload = Conditions.here("pipeline"), Workload()
    functions = {mode: Functions(workload, mode) for mode in MODES}
    ideals: dict[str, list[float]] = {mode: [] for mode in MODES}

    def between() -> None:
        for mode, alone in functions.items():
            ideals[mode].append(alone.ideal())

    measured = measure(SIDES, workload, rounds=rounds, steps=steps, warmup=warmup, between=between)
    result = collect(measured, ideals, conditions, workload)
    show(result)
    result.write(output)


if __name__ == "__main__":
    typer.run(main)
