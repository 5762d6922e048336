"""What a step costs beyond the work: the local engine's part, and the caller's Python around it.

The engine runs a program that does almost nothing, and that tells the time first and last by an op that is a clock. The
overhead is the round trip (from the call until the step's future has its result) less the slowest worker's own time
between the two. So it holds all that is not work: telling the workers, waking them, finding tensors, hearing back.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import track
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks import clock
from benchmarks.caller import CALL, caller_cpu
from benchmarks.results import RESULTS, Conditions, Figure, Goal, Result
from benchmarks.tables import show
from samite.hal.engine import Workers
from samite.hal.program import Argument, Program
from samite.hal.program import Result as Outcome
from samite.ir.importer import import_graph
from samite.layout import Factor, Layout
from samite.mesh import Mesh
from samite.plugins import engine

__all__ = ["collect", "main", "overheads", "stamped"]

MOST = 0.5
FEW, MANY = 1, 276
"""Buffers that a step replaces. The GPT of four layers has 276: its parameters and the optimizer's state."""
NUMBER = Layout.replicated(())


def stamped(mesh: Mesh, buffers: int) -> Program:
    """Adds 1 to each of `buffers` numbers. The first two results, one element a rank, are its times first and last."""

    def step(*numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = clock.now(numbers[0])
        replaced = [number + 1 for number in numbers]
        return first, clock.now(replaced[-1]), *replaced

    with FakeTensorMode() as mode, torch.no_grad():
        fakes = [mode.from_tensor(torch.zeros(())) for _ in range(buffers)]
        graph = make_fx(step)(*fakes).graph
    names = [f"number_{i}" for i in range(buffers)]
    times = Layout(((Factor(mesh.size, mesh.axes),),))
    arguments = tuple(Argument(name, "state", "float32", NUMBER) for name in names)
    results = tuple(Outcome(name, "float32", NUMBER, alias=i) for i, name in enumerate(names))
    clocks = Outcome("first", "int64", times), Outcome("last", "int64", times)
    return Program("nearly_nothing", mesh, import_graph(graph, mesh=mesh).text(), arguments, clocks + results)


def overheads(workers: Workers, buffers: int, steps: int) -> tuple[list[float], list[float]]:
    """Milliseconds of overhead, and of the slowest worker's own time, in each of `steps` steps run one at a time."""
    numbers = list(range(buffers))
    first, last = buffers, buffers + 1
    for number in numbers:
        workers.write(number, torch.zeros(()), NUMBER)
    program = workers.load(stamped(workers.mesh, buffers), {})
    over: list[float] = []
    own: list[float] = []
    for step in range(-4, steps):  # places in shared memory are new in the first steps, then they repeat
        started = time.perf_counter()
        workers.run(program, numbers, [first, last, *numbers]).result()
        round_trip = 1e3 * (time.perf_counter() - started)
        slowest = (workers.read(last) - workers.read(first)).max().item() / 1e6
        if step >= 0:
            over.append(round_trip - slowest)
            own.append(slowest)
    workers.free([*numbers, first, last])
    return over, own


def collect(
    measured: dict[tuple[int, int], tuple[Sequence[float], Sequence[float]]],
    caller: dict[str, list[float]],
    conditions: Conditions,
) -> Result:
    """`measured` has overheads and workers' own times by (ranks, buffers); `caller` is what `caller_cpu` gives."""
    figures: list[Figure] = []
    goals: list[Goal] = []
    facts = {CALL: f"of a training step that keeps {MANY} tensors on two workers"}
    for (ranks, buffers), (over, own) in measured.items():
        case = f"{ranks} ranks, {buffers} buffer{'s' if buffers > 1 else ''}"
        figures += [
            Figure(f"engine, {case}", "ms", list(over)),
            Figure(f"the slowest worker's own time, {case}", "ms", list(own)),
        ]
        if ranks <= conditions.machine["cores"]:
            goals.append(Goal(f"engine beyond the slowest worker, {case}", "at most", MOST, "ms", figures[-2].median))
        else:
            facts[f"{ranks} ranks"] = "more than cores, so ranks also wait for each other's turn; no goal"
    figures += [Figure(f"caller's processor time, {part}", "ms", samples) for part, samples in caller.items()]
    return Result("dispatch", conditions, figures, goals, facts=facts)


def main(
    steps: Annotated[int, typer.Option(min=1, help="Steps of each case.")] = 500,
    output: Annotated[Path, typer.Option(help="Where the samples go.")] = RESULTS / "dispatch.json",
) -> None:
    conditions = Conditions.here("dispatch")
    torch.set_num_threads(1)
    measured: dict[tuple[int, int], tuple[Sequence[float], Sequence[float]]] = {}
    for ranks in track((2, 4), description="ranks", disable=not sys.stderr.isatty()):
        options = {"worker_imports": clock.__name__, "threads_per_worker": 1}
        workers = engine("local").start(Mesh(("d",), (ranks,)), options)
        try:
            for buffers in (FEW, MANY):
                measured[ranks, buffers] = overheads(workers, buffers, steps)
        finally:
            workers.close()
    result = collect(measured, caller_cpu(steps), conditions)
    show(result)
    result.write(output)


if __name__ == "__main__":
    typer.run(main)
