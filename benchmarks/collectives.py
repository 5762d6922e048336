"""All-reduce by algorithm and size, through shared memory and over sockets; gradients one by one and in buckets.

A program reduces the same tensor several times; workers tell the time before and after, so a sample is of the slowest
rank and has no part of the engine. Hierarchical is what `choose_algorithm` writes where links are unlike: here they are
alike, so it shows what the two more steps cost.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks import clock
from benchmarks.results import RESULTS, Conditions, Figure, Goal, Result
from benchmarks.tables import show
from benchmarks.workload import Workload
from samite.hal.engine import Workers
from samite.hal.program import Argument, Program
from samite.hal.program import Result as Outcome
from samite.ir.importer import import_graph
from samite.layout import Factor, Layout
from samite.mesh import Mesh
from samite.passes.bucket_collectives import BucketCollectives
from samite.passes.choose_algorithm import ChooseAlgorithm
from samite.plugins import engine
from samite.topology import Link, Topology

__all__ = ["SIZES", "collect", "gradient_sync", "main", "reductions"]

SIZES = {"1 KB": 1 << 10, "16 KB": 1 << 14, "64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 1 << 24}
ALGORITHMS = ("auto", "direct", "ring", "tree")
TRANSPORTS = {"shared memory": True, "gloo": False}
GOALS = {"64 KB": 5.0, "16 MB": 2.0}
"""How many times faster than gloo shared memory is to be, between two ranks, each as it is by default."""
UNLIKE = Topology(links=(("host", Link(1e3, 1e-3)), ("core", Link(1e12, 0.0))))
"""Has everything reduced inside "core" first."""


def reductions(
    mesh: Mesh, shapes: Sequence[tuple[int, ...]], algorithm: str, repeats: int, *, bucketed: bool
) -> Program:
    """Reduces zeros of these shapes; its results, one element a rank, are the times first and last."""
    axes = ",".join(mesh.axes)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors = [torch.zeros(shape) for shape in shapes]
        first = clock.now(x)
        for _ in range(repeats):
            tensors = [torch.ops.samite.all_reduce(each, axes, "sum", algorithm) for each in tensors]
        return first, clock.now(torch.cat([each.flatten()[:1] for each in tensors]))

    with FakeTensorMode() as mode, torch.no_grad():
        module = import_graph(make_fx(run)(mode.from_tensor(torch.zeros(1))).graph, mesh=mesh)
    if algorithm == "auto" and len(mesh.axes) > 1:
        module = ChooseAlgorithm(UNLIKE).run(module)
    if bucketed:
        module = BucketCollectives().run(module)
    times = Layout(((Factor(mesh.size, mesh.axes),),))
    results = tuple(Outcome(name, "int64", times) for name in ("first", "last"))
    return Program("reductions", mesh, module.text(), (Argument("x", "input", "float32", times),), results)


def seconds(workers: Workers, program: Program, repeats: int, samples: int) -> list[float]:
    """Of one repetition, on the slowest rank."""
    handle, found = workers.load(program, {}), list[float]()
    for sample in range(-2, samples):
        workers.run(handle, [torch.zeros(workers.mesh.size)], [0, 1]).result()
        spent = (workers.read(1) - workers.read(0)).max().item() / 1e9
        if sample >= 0:
            found.append(spent / repeats)
    workers.free([0, 1])
    return found


def by_size(ranks: int, transport: str, samples: int) -> Iterator[tuple[str, str, list[float]]]:
    """(algorithm, size, microseconds)."""
    flat, nested = Mesh(("d",), (ranks,)), Mesh(("host", "core"), (2, ranks // 2))
    for mesh in (flat, nested) if ranks > 2 else (flat,):
        workers = _started(mesh, transport)
        try:
            for algorithm in ALGORITHMS if mesh is flat else ("auto",):
                for size, nbytes in SIZES.items():
                    repeats = 16 if nbytes <= 1 << 16 else 4 if nbytes <= 1 << 20 else 1
                    program = reductions(mesh, [(nbytes // 4,)], algorithm, repeats, bucketed=False)
                    found = [1e6 * s for s in seconds(workers, program, repeats, samples)]
                    yield "hierarchical" if mesh is nested else algorithm, size, found
        finally:
            workers.close()


def gradient_sync(workload: Workload, transport: str, samples: int) -> Iterator[tuple[str, list[float]]]:
    """(how, milliseconds) for the gradients of a model between two ranks."""
    shapes = [tuple(parameter.shape) for parameter in workload.model().parameters()]
    workers = _started(mesh := Mesh(("d",), (2,)), transport)
    try:
        for how in ("one by one", "in buckets"):
            program = reductions(mesh, shapes, "auto", 1, bucketed=how == "in buckets")
            yield how, [1e3 * s for s in seconds(workers, program, 1, samples)]
    finally:
        workers.close()


def _started(mesh: Mesh, transport: str) -> Workers:
    options = {"worker_imports": clock.__name__, "threads_per_worker": 1, "shared_memory": TRANSPORTS[transport]}
    return engine("local").start(mesh, options)


def collect(
    sizes: Mapping[tuple[int, str, str, str], list[float]],
    gradients: Mapping[tuple[str, str], list[float]],
    conditions: Conditions,
) -> Result:
    """`sizes` are microseconds by (ranks, transport, algorithm, size), `gradients` milliseconds by (transport, how)."""
    figures = [
        Figure(f"{ranks} ranks, {transport}, {algorithm}", "µs", samples, size)
        for (ranks, transport, algorithm, size), samples in sizes.items()
    ]
    facts: dict[str, Any] = {"gradients": f"{Workload()}, two ranks"}
    medians = {key: Figure("", "ms", samples).median for key, samples in gradients.items()}
    facts |= {f"gradients {how}, {transport}": f"{ms:.2f} ms" for (transport, how), ms in medians.items()}
    goals: list[Goal] = []
    for size, target in GOALS.items():
        shared, gloo = (sizes.get((2, transport, "auto", size)) for transport in TRANSPORTS)
        if shared and gloo:
            times = Figure("", "µs", gloo).median / Figure("", "µs", shared).median
            goals.append(Goal(f"{size} all-reduce, shared memory against gloo", "at least", target, "×", times))
    return Result("collectives", conditions, figures, goals, facts=facts)


def main(
    samples: Annotated[int, typer.Option(min=1, help="Samples of each case.")] = 7,
    ranks: Annotated[list[int] | None, typer.Option(help="Numbers of ranks; default: 2 and 4.")] = None,
    output: Annotated[Path, typer.Option(help="Where the samples go.")] = RESULTS / "collectives.json",
) -> None:
    conditions = Conditions.here("collectives")
    torch.set_num_threads(1)
    cases = [(count, transport) for count in ranks or (2, 4) for transport in TRANSPORTS]
    sizes: dict[tuple[int, str, str, str], list[float]] = {}
    for count, transport in track(cases, description="cases", disable=not sys.stderr.isatty()):
        for algorithm, size, found in by_size(count, transport, samples):
            sizes[count, transport, algorithm, size] = found
    gradients = {
        (transport, how): found
        for transport in TRANSPORTS
        for how, found in gradient_sync(Workload(), transport, samples)
    }
    result = collect(sizes, gradients, conditions)
    show(result)
    result.write(output)


if __name__ == "__main__":
    typer.run(main)
