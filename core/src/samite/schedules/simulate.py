"""What a schedule takes: time, idle time, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from samite.schedules.actions import Action, Work
from samite.schedules.check import check

__all__ = ["Simulated", "Span", "simulate"]


class Span(NamedTuple):
    """An action and when it runs, in seconds from the start of the loop."""

    action: Action
    start: float
    seconds: float

    @property
    def rank(self) -> int:
        return self.action.rank

    @property
    def name(self) -> str:
        return str(self.action)


@dataclass(frozen=True)
class Simulated:
    """`seconds` until all is done; by rank, the seconds `busy` and the most bytes saved at one time; spans in order.

    `bubble` is the idle share of all ranks' time.
    """

    seconds: float
    busy: tuple[float, ...]
    bubble: float
    peak_bytes: tuple[int, ...]
    spans: tuple[Span, ...]


def simulate(actions: Sequence[Action], work: Work) -> Simulated:
    """Each rank runs its actions in order, waits for what it needs from others, and sends without waiting.

    Transfers do not slow each other or the ranks down. Raises ScheduleError as `check` does.
    """
    check(actions, work)
    free, busy = [0.0] * work.ranks, [0.0] * work.ranks
    ends: dict[Action, float] = {}
    spans: list[Span] = []
    for action in actions:
        task, start = action.task, free[action.rank]
        for need in work.needs[task]:
            end = ends[Action(work.rank(need), *need, action.microbatch)]
            start = max(start, end + work.seconds_between(need, task))
        seconds = work.seconds[task]
        spans.append(Span(action, start, seconds))
        free[action.rank] = ends[action] = start + seconds
        busy[action.rank] += seconds
    total = max(free)
    bubble = 1 - sum(busy) / (work.ranks * total) if total else 0.0
    return Simulated(total, tuple(busy), bubble, _peak_bytes(actions, work, ends), tuple(spans))


def _peak_bytes(actions: Sequence[Action], work: Work, ends: dict[Action, float]) -> tuple[int, ...]:
    """By rank, the most bytes that lie there at one time for later tasks."""
    place = {action: index for index, action in enumerate(actions)}
    # At one time, what ends earlier in the schedule comes first, and a result lies there before its operands go.
    changes: list[tuple[float, int, bool, int, int]] = []  # when, after which action, goes or comes, rank, bytes
    for action in actions:
        for user, nbytes in work.saved.get(action.task, {}).items():
            rank = work.rank(user)
            last = Action(rank, *user, action.microbatch)
            changes += [
                (ends[action], place[action], False, rank, nbytes),
                (ends[last], place[last], True, rank, -nbytes),
            ]
    held, peak = [0] * work.ranks, [0] * work.ranks
    for _, _, _, rank, nbytes in sorted(changes):
        held[rank] += nbytes
        peak[rank] = max(peak[rank], held[rank])
    return tuple(peak)
