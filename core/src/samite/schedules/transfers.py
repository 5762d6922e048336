"""What ranks send each other, derived from a schedule: who starts which transfer when, and who waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from samite.errors import ScheduleError
from samite.schedules.actions import Action, Task, Work

__all__ = ["Event", "Start", "Transfer", "Wait", "check_transfers", "programs"]


class Transfer(NamedTuple):
    """All that a rank reads of what an action made, in one message from the action's rank."""

    action: Action
    to: int

    def __str__(self) -> str:
        return f"the message of {self.action} from rank {self.action.rank} to rank {self.to}"


@dataclass(frozen=True)
class Start:
    """Begin to send (on the rank of the transfer's action) or to receive (on the other), and go on."""

    transfer: Transfer


@dataclass(frozen=True)
class Wait:
    """Wait until the transfer has arrived; only who receives waits."""

    transfer: Transfer


Event = Action | Start | Wait


def programs(actions: Sequence[Action], work: Work) -> tuple[tuple[Event, ...], ...]:
    """What each rank does, in order: its actions, the transfers that it starts, and its waits.

    Both ends start a transfer at the place in the global order where its action stands (the sender after the action),
    and the receiver waits before the first action that reads it. Starts of all ranks so follow one total order: the
    first transfer that has not arrived has nothing unarrived before it on either rank, therefore it arrives, even if a
    start returns only when the other rank has come to it as well.
    """
    readers = {task: _reading_ranks(task, work) for task in work.needs}
    done: list[list[Event]] = [[] for _ in range(work.ranks)]
    waited: set[Transfer] = set()
    for action in actions:
        mine = done[action.rank]
        for need in sorted(work.needs[action.task]):
            transfer = Transfer(Action(work.rank(need), *need, action.microbatch), action.rank)
            if work.rank(need) != action.rank and transfer not in waited:
                waited.add(transfer)
                mine.append(Wait(transfer))
        mine.append(action)
        for rank in readers[action.task]:
            transfer = Transfer(action, rank)
            mine.append(Start(transfer))
            done[rank].append(Start(transfer))
    return tuple(map(tuple, done))


def check_transfers(ranks: Sequence[Sequence[Event]]) -> None:
    """Raise ScheduleError if the programs of the ranks, run together, deadlock.

    A start is taken as a rendezvous: it returns when the other rank has started the same transfer. What passes so
    passes with any buffer, and if the transfers of a rank or a pair of ranks go through one queue.
    """
    at = [0] * len(ranks)
    arrived: set[Transfer] = set()

    def blocked(rank: int) -> Transfer | None:
        """Runs a rank as far as it goes alone: to a transfer that it starts or waits for, or to its end (None)."""
        while at[rank] < len(ranks[rank]):
            event = ranks[rank][at[rank]]
            if isinstance(event, Start) or (isinstance(event, Wait) and event.transfer not in arrived):
                return event.transfer
            at[rank] += 1
        return None

    waiting = [blocked(rank) for rank in range(len(ranks))]
    moved = True
    while moved:
        moved = False
        for transfer in waiting:
            if transfer is None:
                continue
            ends = (transfer.action.rank, transfer.to)
            if all(waiting[end] == transfer and isinstance(ranks[end][at[end]], Start) for end in ends):
                arrived.add(transfer)
                for end in ends:
                    at[end] += 1
                    waiting[end] = blocked(end)
                moved = True
                break
    if stuck := [f"rank {rank} waits for {transfer}" for rank, transfer in enumerate(waiting) if transfer]:
        raise ScheduleError(
            "the transfers deadlock: " + "; ".join(stuck),
            help="start transfers on both ranks in one order, before anything that waits for a later one",
        )


def _reading_ranks(task: Task, work: Work) -> list[int]:
    """The other ranks that read what a task makes."""
    ranks = {work.rank(user) for user, needed in work.needs.items() if task in needed}
    return sorted(ranks - {work.rank(task)})
