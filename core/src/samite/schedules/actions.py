"""The vocabulary of schedules: the functions of a pipeline, what they need, cost and leave, and one run of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from math import isfinite
from typing import Literal, NamedTuple, get_args

from samite.errors import ScheduleError, nearest

__all__ = ["Action", "Phase", "Task", "Work"]

Phase = Literal["forward", "backward_input", "backward_weight"]


class Task(NamedTuple):
    """One function of the pipeline, which runs once a microbatch."""

    stage: int
    phase: Phase

    def __str__(self) -> str:
        return f"{self.phase} of stage {self.stage}"


class Action(NamedTuple):
    """One run of a function, for one microbatch, on the rank (the index on the pipeline's axis) that has its stage."""

    rank: int
    stage: int
    phase: Phase
    microbatch: int

    @property
    def task(self) -> Task:
        return Task(self.stage, self.phase)

    def __str__(self) -> str:
        return f"{self.task}, microbatch {self.microbatch}"


def _none_sent() -> dict[tuple[Task, Task], float]:
    return {}


def _none_saved() -> dict[Task, dict[Task, int]]:
    return {}


@dataclass(frozen=True)
class Work:
    """What there is to schedule: `microbatches` runs of every task, on `ranks` ranks; stage s lies on rank s % ranks.

    `needs` has every task there is as a key, with the tasks whose results it reads, of the same microbatch. A forward
    needs forwards of earlier stages alone. `seconds` is the time of each task, and `sends` that on the wire from one
    task to another (0 if missing; between tasks of one rank it does not count). `saved` are the bytes that a task
    leaves for others, by the task that reads them last on its rank: they lie on the reader's rank from the end of the
    one to the end of the other.

    Raises ScheduleError for sizes that do not fit each other, a need that is no task or can never be met, and a time
    that is none.
    """

    stages: int
    ranks: int
    microbatches: int
    needs: Mapping[Task, frozenset[Task]]
    seconds: Mapping[Task, float]
    sends: Mapping[tuple[Task, Task], float] = field(default_factory=_none_sent)
    saved: Mapping[Task, Mapping[Task, int]] = field(default_factory=_none_saved)

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_tasks()
        for task in self.needs:
            if task not in self.seconds:
                raise ScheduleError(f"the {task} has no time", help="`seconds` has one for every key of `needs`")
        times = {f"the {task}": seconds for task, seconds in self.seconds.items()}
        times |= {f"the way from the {one} to the {other}": seconds for (one, other), seconds in self.sends.items()}
        for what, seconds in times.items():
            if not (isfinite(seconds) and seconds >= 0):
                raise ScheduleError(f"{what} takes {seconds} seconds", help="give a finite number, 0 or more")

    def rank(self, task: Task) -> int:
        return task.stage % self.ranks

    def tasks_of(self, rank: int) -> tuple[Task, ...]:
        """The tasks of a rank's stages, in order of `needs`."""
        return tuple(task for task in self.needs if self.rank(task) == rank)

    def seconds_between(self, source: Task, user: Task) -> float:
        """From the end of one task until another can read its result."""
        return self.sends.get((source, user), 0.0) if self.rank(source) != self.rank(user) else 0.0

    def _check_sizes(self) -> None:
        for name, size in (("stages", self.stages), ("ranks", self.ranks), ("microbatches", self.microbatches)):
            if size < 1:
                raise ScheduleError(f"a pipeline of {size} {name}", help=f"{name} must be 1 or more")
        if self.stages % self.ranks:
            more = -(-self.stages // self.ranks) * self.ranks
            raise ScheduleError(
                f"{self.stages} stages do not spread evenly over {self.ranks} ranks",
                help=f"cut the graph into {more} stages, or run the {self.stages} on "
                + " or ".join(str(n) for n in range(1, self.stages + 1) if self.stages % n == 0)
                + " ranks",
            )

    def _check_tasks(self) -> None:
        for task, needed in self.needs.items():
            if task.phase not in get_args(Phase):
                raise ScheduleError(f'unknown phase "{task.phase}"', help=nearest(task.phase, get_args(Phase)))
            if not 0 <= task.stage < self.stages:
                raise ScheduleError(f"the {task} is none of {self.stages} stages", help="stages count from 0")
            for need in needed:
                if need not in self.needs:
                    raise ScheduleError(
                        f"the {task} needs the {need}, which is no task", help="`needs` lists every task"
                    )
                if task.phase == "forward" and (need.phase != "forward" or need.stage >= task.stage):
                    raise ScheduleError(
                        f"the {task} needs the {need}", help="a forward needs forwards of earlier stages alone"
                    )
        try:
            TopologicalSorter(self.needs).prepare()
        except CycleError as error:
            ring = " needs the ".join(str(task) for task in reversed(error.args[1]))
            raise ScheduleError(
                f"the {ring}", help="put the cut elsewhere: stages need each other in one direction"
            ) from None
