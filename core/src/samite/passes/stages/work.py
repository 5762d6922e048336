"""What there is to schedule of a pipeline that was cut, and in words what was decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from samite.passes.stages.functions import StageFunction
from samite.passes.stages.spread import seconds
from samite.schedules import Phase, Simulated, Task, Work
from samite.topology import Topology

__all__ = ["in_words", "work_of"]

_PHASES = ("forward", "backward_input", "backward_weight")
"""In the order in which a stage comes to them."""


def work_of(
    functions: Sequence[StageFunction], stages: int, ranks: int, microbatches: int, axis: str, topology: Topology
) -> Work:
    """Times are those of the roofline and of the link along `axis`."""
    looped = {Task(f.stage, cast(Phase, f.phase)): f for f in functions if f.is_looped}
    makers = {value: task for task, f in looped.items() for value in f.makes}
    needs: dict[Task, set[Task]] = {task: set() for task in looped}
    sends: dict[tuple[Task, Task], int] = {}
    last: dict[int, dict[int, Task]] = {}  # of each value by rank: the task that reads it last
    for task in sorted(looped, key=lambda t: (_PHASES.index(t.phase), -t.stage)):
        for port in looped[task].reads:
            maker = makers.get(port.value)
            if maker is None or maker == task:
                continue
            needs[task].add(maker)
            last.setdefault(port.value, {})[task.stage % ranks] = task
            if maker.stage % ranks != task.stage % ranks:
                sends[maker, task] = sends.get((maker, task), 0) + looped[maker].nbytes(port.value)
    saved: dict[Task, dict[Task, int]] = {}
    for value, by_rank in last.items():
        maker = makers[value]
        left = saved.setdefault(maker, {})
        for task in by_rank.values():
            left[task] = left.get(task, 0) + looped[maker].nbytes(value)
    return Work(
        stages,
        ranks,
        microbatches,
        {task: frozenset(needed) for task, needed in needs.items()},
        {task: _seconds(f, topology) for task, f in looped.items()},
        {pair: topology.cost(nbytes, axis) for pair, nbytes in sends.items()},
        saved,
    )


def _seconds(function: StageFunction, topology: Topology) -> float:
    graph = function.module.graph
    return sum(seconds(node, graph, topology.device) for node in graph.nodes)


def in_words(functions: Sequence[StageFunction], work: Work, kind: str, simulated: Simulated) -> tuple[str, ...]:
    """The schedule, and what each stage is, a line each."""
    ranks = f"{work.ranks} rank{'s' * (work.ranks > 1)}"
    lines = [
        f"{work.stages} stages on {ranks}, {work.microbatches} microbatches, {kind}: "
        f"{simulated.bubble:.0%} of the loop idle in simulation"
    ]
    for stage in range(work.stages):
        spent = sum(time for task, time in work.seconds.items() if task.stage == stage)
        lines.append(f"stage {stage}: {_lines_of(functions, stage)}, {spent * 1e3:.2f} ms a microbatch")
    return tuple(lines)


def _lines_of(functions: Sequence[StageFunction], stage: int) -> str:
    """Where the forward of a stage begins and ends."""
    for function in functions:
        if (function.stage, function.phase) == (stage, "forward"):
            ops = {node.source.op: node.source.line for node in function.module.graph.nodes if node.source.line}
            return f"{ops[min(ops)]} to {ops[max(ops)]}" if ops else "no op of its own"
    return "no op of its own"
