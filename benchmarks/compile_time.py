"""How long a training step takes to compile: import and each pass, for GPTs of 4 and 24 layers on dp=2, tp=2.

Each sample is a fresh process, which compiles cold and then warm: rules, plans and layouts are cached in a process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.progress import track

from benchmarks.results import RESULTS, ROOT, Conditions, Figure, Goal, Result
from benchmarks.tables import show
from benchmarks.workload import Workload

__all__ = ["collect", "main"]

PLANNING = ("place", "partition")
TOGETHER = " + ".join(PLANNING)
GOALS = {4: 0.4, 24: 2.5}
"""Layers -> the most seconds that `PLANNING` is to take in a fresh process."""


def collect(measured: dict[int, Sequence[dict[str, Any]]], conditions: Conditions) -> Result:
    """`measured` has what processes of `compile_once` found, by the number of layers."""
    figures: list[Figure] = []
    goals: list[Goal] = []
    facts: dict[str, Any] = {f"{layers} layers": _size(layers, processes[0]) for layers, processes in measured.items()}
    for layers, processes in measured.items():
        cold, warm = f"{layers} layers, cold", f"{layers} layers, warm"
        figures.append(Figure("capture", "s", [p["capture_s"] for p in processes], cold))
        for series, runs in (
            (cold, [p["runs"][0] for p in processes]),
            (warm, [{step: median(run[step] for run in p["runs"][1:]) for step in p["runs"][0]} for p in processes]),
        ):
            figures += [Figure(step, "s", [run[step] for run in runs], series) for step in runs[0]]
            figures.append(Figure(TOGETHER, "s", [sum(run[p] for p in PLANNING) for run in runs], series))
            figures.append(Figure("import and all passes", "s", [sum(run.values()) for run in runs], series))
        if layers in GOALS:
            reached = next(f for f in figures if (f.name, f.series) == (TOGETHER, cold)).median
            goals.append(Goal(f"{TOGETHER}, {layers} layers, cold", "at most", GOALS[layers], "s", reached))
    return Result("compile_time", conditions, figures, goals, facts=facts)


def _size(layers: int, process: dict[str, Any]) -> str:
    return f"{Workload(layers=layers)}; {process['operations']:,} operations, of them {process['calls']:,} ops"


def _process(layers: int, warm: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.compile_once", f"--layers={layers}", f"--warm={warm}"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main(
    processes: Annotated[int, typer.Option(min=1, help="Fresh processes of each size.")] = 5,
    warm: Annotated[int, typer.Option(min=1, help="Times that each compiles again.")] = 3,
    layers: Annotated[list[int] | None, typer.Option(help="Sizes; by default 4 and 24.")] = None,
    output: Annotated[Path, typer.Option(help="Where the samples go.")] = RESULTS / "compile_time.json",
) -> None:
    conditions = Conditions.here("compile_time")
    sizes = list(dict.fromkeys(layers or GOALS))
    measured: dict[int, Sequence[dict[str, Any]]] = {size: [] for size in sizes}
    runs = [size for _ in range(processes) for size in sizes]
    for size in track(runs, description="processes", disable=not sys.stderr.isatty()):
        measured[size] = [*measured[size], _process(size, warm)]
    result = collect(measured, conditions)
    show(result)
    result.write(output)


if __name__ == "__main__":
    typer.run(main)
