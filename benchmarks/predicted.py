"""Steps as predicted and as measured: the timeline of `samite explain` beside the clock, on a topology measured first.

The same training step as in `gpt_step`, on two workers of one thread each, data parallel, tensor parallel, and placed
by cost. Nothing in the model knows of these programs: the probe has measured ops of each kind, collectives, and a call.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track

from benchmarks.results import RESULTS, Conditions, Figure, Goal, Result
from benchmarks.tables import show
from benchmarks.workload import LEARNING_RATE, Workload, train_step

__all__ = ["WAYS", "collect", "main", "measure"]

WAYS: Mapping[str, Any] = {
    "dp": {"tokens": ("dp", 0), "targets": ("dp", 0)},
    "tp": {"model.*.attention.[qkv].weight": ("tp", 0), "model.*.up.weight": ("tp", 0)},
    "auto": "auto",
}
"""What is placed by hand, as (axis, dim)."""
OFF = 25.0


def measure(workload: Workload, way: str, topology: Path, steps: int) -> tuple[float, list[float]]:
    """Milliseconds of a step: predicted, and each of `steps`."""
    import samite
    from samite import Shard
    from samite.api.topology import read_topology
    from samite.report import predicted_timeline

    os.environ["SAMITE_TOPOLOGY"] = str(topology)
    placed = WAYS[way]
    placements = placed if placed == "auto" else {name: {axis: Shard(dim)} for name, (axis, dim) in placed.items()}
    axis = "dp" if way == "auto" else way
    mesh = samite.mesh("cpu", engine="local", options={"threads_per_worker": 1}, **{axis: 2})
    compiled = samite.compile(train_step, mesh=mesh, placements=placements)
    model = workload.model()
    arguments = model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE), *workload.data()
    milliseconds: list[float] = []
    for step in range(-5, steps):
        started = time.perf_counter()
        compiled(*arguments).item()
        if step >= 0:
            milliseconds.append(1e3 * (time.perf_counter() - started))
    _, built = compiled.lower(*arguments)
    return 1e3 * (predicted_timeline(built).seconds + read_topology(topology).call), milliseconds


def collect(measured: Mapping[str, tuple[float, list[float]]], facts: dict[str, Any], conditions: Conditions) -> Result:
    """`measured` is by case what `measure` gives."""
    figures: list[Figure] = []
    goals: list[Goal] = []
    for case, (predicted, milliseconds) in measured.items():
        figures += [Figure(case, "ms", [predicted], "predicted"), Figure(case, "ms", milliseconds, "measured")]
        off = 100 * abs(predicted / statistics.median(milliseconds) - 1)
        goals.append(Goal(f"prediction of {case}: off by", "at most", OFF, "%", off))
    return Result("predicted", conditions, figures, goals, facts=facts)


def main(
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each case.")] = 20,
    dim: Annotated[list[int] | None, typer.Option(help="Widths of the model; default: 128 and 384.")] = None,
    output: Annotated[Path, typer.Option(help="Where the samples go.")] = RESULTS / "predicted.json",
) -> None:
    conditions = Conditions.here("predicted")
    torch.set_num_threads(1)
    import samite
    from samite.api.probe import measure as probe

    measured: dict[str, tuple[float, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "topology.json"
        for axis in ("dp", "tp"):
            found = probe(samite.mesh("cpu", engine="local", options={"threads_per_worker": 1}, **{axis: 2})).to_dict()
            file.with_name(f"{axis}.json").write_text(json.dumps(found), encoding="utf-8")
        cases = [(width, way) for width in dim or (128, 384) for way in WAYS]
        for width, way in track(cases, description="cases", disable=not sys.stderr.isatty()):
            workload = Workload(dim=width, heads=width // 32)
            topology = file.with_name("tp.json" if way == "tp" else "dp.json")
            measured[f"{way}, d {width}"] = measure(workload, way, topology, steps)
    result = collect(measured, {"workload": str(Workload())}, conditions)
    show(result)
    result.write(output)


if __name__ == "__main__":
    typer.run(main)
