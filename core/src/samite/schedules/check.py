"""Whether a schedule is right."""

from __future__ import annotations

from collections.abc import Sequence

from samite.errors import ScheduleError
from samite.schedules.actions import Action, Task, Work
from samite.schedules.transfers import check_transfers, programs

__all__ = ["check"]


def check(actions: Sequence[Action], work: Work) -> None:
    """Raise ScheduleError unless `actions` are a schedule of `work`.

    That is: every task runs once for every microbatch, on the rank that has its stage, microbatches in order, after
    what it needs; and the transfers, started and awaited as in `programs`, cannot deadlock.
    """
    ran = dict.fromkeys(work.needs, 0)
    for action in actions:
        task = action.task
        if task not in ran:
            raise ScheduleError(f"{action}: there is no such task", help="a schedule has the keys of `needs` alone")
        if action.rank != work.rank(task):
            raise ScheduleError(f"{action} is on rank {action.rank}", help=f"its stage lies on rank {work.rank(task)}")
        if action.microbatch >= work.microbatches:
            raise ScheduleError(f"{action}: there are {work.microbatches} microbatches", help="they count from 0")
        if action.microbatch != ran[task]:
            raise ScheduleError(
                f"{action} comes where microbatch {ran[task]} should",
                help="each task runs once for every microbatch, in order: sums depend on it",
            )
        _check_needs(action, work, ran)
        ran[task] += 1
    for task, count in ran.items():
        if count < work.microbatches:
            raise ScheduleError(
                f"the {task} is missing for microbatch {count}",
                help=f"each task runs for all {work.microbatches} microbatches",
            )
    check_transfers(programs(actions, work))


def _check_needs(action: Action, work: Work, ran: dict[Task, int]) -> None:
    for need in work.needs[action.task]:
        if ran[need] <= action.microbatch:
            raise ScheduleError(f"{action} comes before the {need}, which it needs", help="put it after what it needs")
