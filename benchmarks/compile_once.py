"""One fresh process of `compile_time`: captures a GPT's training step, compiles it cold and warm, prints JSON."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
import typer

import samite
from benchmarks.workload import LEARNING_RATE, Workload, train_step
from samite import Shard
from samite.config import Settings
from samite.frontend import Capture, capture
from samite.ir.importer import import_graph
from samite.mesh import Mesh
from samite.passes.pipeline import default_passes, run_passes

__all__ = ["Compiled", "compile_repeatedly"]

PLACEMENTS = {
    "tokens": {"dp": Shard(0)},
    "targets": {"dp": Shard(0)},
    "model.*.attention.[qkv].weight": {"tp": Shard(0)},
    "model.*.up.weight": {"tp": Shard(0)},
}


@dataclass(frozen=True)
class Compiled:
    """`capture_s` seconds of capture; `operations` of the imported module, and the calls of ops among them; `runs` are
    the seconds of each step of the compiler by name, the first run cold."""

    capture_s: float
    operations: int
    calls: int
    runs: list[dict[str, float]]


def compile_repeatedly(workload: Workload, warm: int) -> Compiled:
    """The step of a running training on dp=2, tp=2: the optimizer's state is there."""
    model, data = workload.model(), workload.data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    train_step(model, optimizer, *data)
    mesh = samite.mesh("cpu", dp=2, tp=2)
    started = time.perf_counter()
    captured = capture(train_step, (model, optimizer, *data))
    capture_s = time.perf_counter() - started
    operations = calls = 0
    runs: list[dict[str, float]] = []
    for _ in range(1 + warm):
        operations, calls, seconds = _compile(captured, mesh)
        runs.append(seconds)
    return Compiled(capture_s, operations, calls, runs)


def _compile(captured: Capture, mesh: Mesh) -> tuple[int, int, dict[str, float]]:
    """What `samite.compile` does with a capture, up to the program."""
    started = time.perf_counter()
    module = import_graph(
        captured.graph.graph,
        arguments=[(a.name, a.owner) for a in captured.arguments],
        aliases=[r.argument for r in captured.results],
        mesh=mesh,
    )
    seconds = {"import": time.perf_counter() - started}
    operations, calls = _operations(module.mlir.operation), len(module.graph.nodes)
    _, records = run_passes(module, default_passes(PLACEMENTS, {}, int(Settings().bucket_bytes)))
    return operations, calls, seconds | {record.name: record.seconds for record in records}


def _operations(operation: Any) -> int:
    """MLIR operations in `operation`, itself not counted: constants and lists are operations too."""
    return sum(
        1 + _operations(inner) for region in operation.regions for block in region.blocks for inner in block.operations
    )


def main(layers: int = 4, warm: int = 2) -> None:
    print(json.dumps(asdict(compile_repeatedly(Workload(layers=layers), warm))))


if __name__ == "__main__":
    typer.run(main)
