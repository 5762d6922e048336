"""How long a script waits for its first Inductor step, at its first and at its second start.

Each start is a fresh process that trains a 4-layer GPT on two workers: its second step is the first of a running
training (the one before it makes the optimizer's state, and runs in ATen). A first start finds empty caches. Second
starts find Inductor's own cache, with and without what Samite keeps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from benchmarks.results import RESULTS, ROOT, Conditions, Figure, Goal, Result
from benchmarks.tables import show
from benchmarks.workload import LEARNING_RATE, Workload, train_step

__all__ = ["STARTS", "collect", "main"]

STARTS = ("first start", "second start, nothing kept", "second start")
MOST = 2.0
"""Seconds after capture that the step of a second start is to take."""


def collect(seconds: Mapping[str, Sequence[float]], conditions: Conditions) -> Result:
    """From the seconds of each of `STARTS`, one of each a round."""
    figures = [Figure("capture to the first Inductor step", "s", list(seconds[start]), start) for start in STARTS]
    goals = [Goal("a second start's first Inductor step", "at most", MOST, "s", figures[-1].median)]
    return Result("second_start", conditions, figures, goals, facts={"model": str(Workload())})


def start_once() -> float:
    """Seconds from the end of the capture of the second step to its loss."""
    import torch

    import samite
    from samite import Shard

    workload = Workload()
    model, data = workload.model(), workload.data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    placements = {"tokens": {"dp": Shard(0)}, "targets": {"dp": Shard(0)}}
    step = samite.compile(train_step, mesh=samite.mesh("cpu", dp=2), placements=placements, mode="inductor")
    step(model, optimizer, *data).item()
    started = time.perf_counter()
    step(model, optimizer, *data).item()
    return time.perf_counter() - started - step.compilations[-1].seconds


def _process(start: str, folder: str) -> float:
    caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "SAMITE_CACHE_DIR": f"{folder}/samite"}
    if start == STARTS[1]:
        caches["SAMITE_CACHE_DIR"] = "off"
    command = [sys.executable, "-m", "benchmarks.second_start", "--once"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | caches)
    return json.loads(done.stdout)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each kind.")] = 3,
    output: Annotated[Path, typer.Option(help="Where the samples go.")] = RESULTS / "second_start.json",
    once: Annotated[bool, typer.Option("--once", hidden=True)] = False,
) -> None:
    if once:
        print(json.dumps(start_once()))
        return
    conditions = Conditions.here("second_start")
    samples: dict[str, list[float]] = {start: [] for start in STARTS}
    for _ in track(range(rounds), description="rounds", disable=not sys.stderr.isatty()):
        with tempfile.TemporaryDirectory() as folder:
            for start in STARTS:
                samples[start].append(_process(start, folder))
    result = collect(samples, conditions)
    show(result)
    result.write(output)


if __name__ == "__main__":
    typer.run(main)
