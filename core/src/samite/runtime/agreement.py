"""Agreement of ranks that run the same script: before they do something together, each says what, and compares.

A rank that is about to do another thing, that says nothing in time, or that has left, is an error that names both, in
place of a collective that ends for nobody. It takes four round trips to the store, whatever the number of ranks, if all
are there; who waits asks again and again, at growing intervals, since a store cannot wait for one thing or another.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from samite.errors import CollectiveMismatch, InputError, WorkerDied
from samite.runtime.departures import Departures

__all__ = ["Agreement", "Intent", "store_of_mesh"]

LEFT = "has left"
GRACE = 2.0
"""Seconds in which a launcher ends all ranks if the one that left has failed: its error is the one to read."""
SHORTEST, LONGEST = 1e-4, 1e-2  # seconds between two looks for what the others say
LOOK_AROUND = 0.25  # seconds between two looks for who has left


class Intent(NamedTuple):
    """What a rank is about to do. `values` are (name, digest) of what must be equal on all ranks; `collectives` counts
    and hashes those that it has asked for so far, `last` is the last of them."""

    what: str
    values: tuple[tuple[str, int], ...] = ()
    collectives: tuple[int, int] = (0, 0)
    last: str = ""


class Agreement:
    """`store` is this agreement's own: a namespace that no one else writes to. `departures` are those of all ranks."""

    def __init__(self, store: Any, rank: int, ranks: int, departures: Departures) -> None:
        self._store, self._rank, self._ranks, self._departures = store, rank, ranks, departures
        self._turn = 0
        self._broken = ""

    def reach(self, intent: Intent, timeout: float) -> None:
        """Returns when all ranks have said the same. Raises CollectiveMismatch if one says another thing, or nothing in
        `timeout` seconds, InputError if values differ, and WorkerDied after either, if one has left, or if the store
        is gone."""
        if self._broken:
            raise WorkerDied(f"the ranks went apart earlier: {self._broken}", rank=self._rank, help="start them again")
        try:
            self._compare(intent, self._exchange(intent, timeout))
        except (CollectiveMismatch, InputError, WorkerDied) as error:
            self._broken = error.what
            raise

    def leave(self) -> None:
        """Say that this rank reaches nothing any more, to those that wait for it now or will."""
        with contextlib.suppress(RuntimeError):  # the store is gone: so is its owner, and all hear of that
            self._store.set(f"{self._turn}/{self._rank}", json.dumps(Intent(LEFT)))

    def _exchange(self, intent: Intent, timeout: float) -> list[Intent]:
        turn = self._turn
        keys = [f"{turn}/{rank}" for rank in range(self._ranks)]
        try:
            self._store.set(keys[self._rank], json.dumps(intent))
            self._turn += 1
            if turn >= 2:  # which all have read: they have answered to the turn after it
                self._store.delete_key(f"{turn - 2}/{self._rank}")
            if silent := self._wait(keys, intent, timeout):
                raise CollectiveMismatch(
                    f"rank {self._rank} {intent.what}, ranks {silent} did nothing in {timeout:.0f} s",
                    rank=self._rank,
                    help="what ranks do together, every rank does: no `if rank == 0` around a step, or around reading "
                    "a value that is laid out over ranks",
                )
            said = self._store.multi_get(keys)
        except RuntimeError as error:
            raise WorkerDied(
                f"the store through which the ranks agree is gone: {error}",
                rank=self._rank,
                help="a rank or its launcher has ended; its output tells why",
            ) from error
        return [Intent(*json.loads(text)) for text in said]

    def _wait(self, keys: Sequence[str], intent: Intent, timeout: float) -> list[int]:
        """Until all keys are there; gives the ranks whose are not after the timeout. Raises WorkerDied if one of these
        has left: those that are only late are waited for."""
        began = looked = time.monotonic()
        while not self._store.check(keys):
            now = time.monotonic()
            if now - looked > LOOK_AROUND:
                looked, gone = now, self._departures.among(self._silent(keys))
                # What a rank said before it left counts, so look for that again.
                if gone := [rank for rank in gone if rank in self._silent(keys)]:
                    raise self._has_left(gone[0], intent)
            if now - began > timeout:
                return self._silent(keys)
            time.sleep(min(LONGEST, max(SHORTEST, (now - began) / 8)))
        return []

    def _has_left(self, rank: int, intent: Intent) -> WorkerDied:
        time.sleep(GRACE)
        return WorkerDied(
            f"rank {rank} has left, rank {self._rank} {intent.what}",
            rank=rank,
            help="what ranks do together, every rank does: none may end its script, or close the mesh, earlier",
        )

    def _silent(self, keys: Sequence[str]) -> list[int]:
        return [rank for rank, key in enumerate(keys) if not self._store.check([key])]

    def _compare(self, ours: Intent, said: Sequence[Intent]) -> None:
        for rank, theirs in enumerate(said):
            if theirs.what == LEFT:
                raise self._has_left(rank, ours)
            if theirs.what != ours.what:
                raise CollectiveMismatch(
                    f"rank {self._rank} {ours.what}, rank {rank} {theirs.what}",
                    rank=rank,
                    help="every rank must make the same calls in the same order",
                )
            if list(theirs.collectives) != list(ours.collectives):
                raise CollectiveMismatch(
                    f"the collectives of ranks {self._rank} and {rank} differ: after {ours.collectives[0]} and "
                    f"{theirs.collectives[0]}, the last are {ours.last or 'none'} and {theirs.last or 'none'}",
                    rank=rank,
                    help="every rank must take the same path through the program",
                )
            here, there = ([name for name, _ in intent.values] for intent in (ours, theirs))
            if here != there:
                raise CollectiveMismatch(
                    f"rank {self._rank} brings {', '.join(here) or 'nothing'}, rank {rank} "
                    f"{', '.join(there) or 'nothing'}",
                    rank=rank,
                    help="every rank must write the same values, in the same order",
                )
            for (name, mine), (_, other) in zip(ours.values, theirs.values, strict=True):
                if mine != other:
                    raise InputError(
                        f"{name} differs between ranks {self._rank} and {rank}",
                        help="a plain tensor is a global one, equal on all ranks: seed them alike, or load one "
                        "checkpoint; a batch of each rank's own enters by samite.from_local",
                    )


def store_of_mesh(store: Any, number: int, attempt: int) -> Any:
    """What the ranks of the `number`th mesh write to, when they are started for the `attempt`th time."""
    from torch.distributed import PrefixStore

    return PrefixStore(f"samite/mesh/{number}/{attempt}", store)
