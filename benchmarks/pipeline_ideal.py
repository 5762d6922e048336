"""How fast a pipeline's schedule would be if ranks did nothing but their functions: simulated from measured times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, cast, get_args
from unittest import mock

import torch
from torch import Tensor

from benchmarks.pipeline_sides import MICROBATCHES, STAGES
from benchmarks.workload import LEARNING_RATE, Workload, train_step
from samite.hal.program import Pipeline, Program
from samite.runtime.lockstep_pipeline import LockstepPipeline
from samite.schedules import Phase, Task, Work, generate, simulate

__all__ = ["Functions", "ideal"]

Seconds = dict[int, list[float]]
"""Of each run of a pipeline's programs, by their number."""


class Functions:
    """The functions of Samite's pipeline, run one after the other in this process, on one thread."""

    def __init__(self, workload: Workload, mode: str) -> None:
        import samite

        mesh = samite.mesh("cpu", engine="lockstep", pp=STAGES)
        self._compiled = samite.compile(train_step, mesh=mesh, microbatches=MICROBATCHES, schedule="1f1b")
        self._model, self._data = workload.model(), workload.data()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE)
        self._seconds: Seconds = {}
        self._pipelines: list[Pipeline] = []

        def timed(program: Program) -> _Timed:
            assert program.pipeline is not None
            self._pipelines.append(program.pipeline)
            return _Timed(program, mode, self._seconds)

        with mock.patch("samite.runtime.lockstep.LockstepPipeline", timed):
            for _ in range(3):  # the first step, the second, which has the optimizer's state, and one to warm up
                self._step()

    def ideal(self) -> float:
        """Milliseconds of one step, from the times that the functions take in one now."""
        self._seconds.clear()
        self._step()
        return 1e3 * ideal(self._pipelines[-1], self._seconds)

    def _step(self) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._compiled(self._model, self._optimizer, *self._data).item()
        finally:
            torch.set_num_threads(threads)


class _Timed(LockstepPipeline):
    """Runs what the backend makes of each program, and not the simulator's form of it."""

    def __init__(self, program: Program, mode: str, seconds: Seconds) -> None:
        self._mode, self._seconds = mode, seconds
        super().__init__(program)

    def _callable(self, number: int) -> Callable[[Sequence[list[Tensor]]], list[list[Tensor]]]:
        from samite_cpu.driver import CpuDriver

        driver = CpuDriver()
        part = self._pipeline.programs[number]
        executable = driver.compile(part.program, driver.devices(), {"mode": self._mode})
        bound = executable.bind((), None, self._deeds.index(part.stage))
        seconds = self._seconds

        def call(arguments: Sequence[list[Tensor]]) -> list[list[Tensor]]:
            inputs = [one for [one] in arguments]
            started = time.perf_counter()
            outputs, event = bound.run(inputs)
            event.wait()
            results = [[output.contiguous()] for output in outputs]
            seconds.setdefault(number, []).append(time.perf_counter() - started)
            return results

        return call


def ideal(pipeline: Pipeline, seconds: Seconds) -> float:
    """Seconds of a step of which the transfers and the sums over microbatches take none.

    The loop is simulated with the median of each function's times. What runs before and after it adds its time on the
    rank where that is longest.
    """
    programs = list(enumerate(pipeline.programs))
    looped = {n: Task(p.stage, cast(Phase, p.phase)) for n, p in programs if p.phase in get_args(Phase)}
    medians = {task: statistics.median(seconds[n]) for n, task in looped.items()}
    makers = {value: task for number, task in looped.items() for value in pipeline.programs[number].makes}
    needs: dict[Task, Any] = {
        task: frozenset(makers[p.value] for p in pipeline.programs[number].reads if p.value in makers) - {task}
        for number, task in looped.items()
    }
    work = Work(pipeline.stages, STAGES, pipeline.microbatches, needs, medians)
    once = [
        sum(sum(seconds[n]) for n, p in programs if n not in looped and p.stage % STAGES == r) for r in range(STAGES)
    ]
    return simulate(generate(pipeline.schedule, work), work).seconds + max(once)
