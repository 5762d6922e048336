"""Rounds of exchanges through memory that all ranks of a host map.

Every rank has two slots, used in turn. In one round it copies a piece of its operand to a slot, says so, waits until
its peers have, and reads what it needs of theirs. It uses the slot again two rounds later, when all who read it have
said that they are through. All ranks of a mesh run the same rounds in the same order, each within its own group, so a
round has one number everywhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import pairwise

import torch

from samite.errors import WorkerError
from samite.hal.shared import Segment

__all__ = ["Rounds", "shared_bytes"]

SLOT = 2**20  # bytes: small enough to be read from a cache, large enough that waiting does not count
LINE = 64
YIELDS = 100  # tries before a waiting rank sleeps; a peer is seldom more than some microseconds late

MOST_PIECES = 1024  # shapes of collectives that are remembered

_Shown = tuple[int, torch.dtype, int, int, tuple[int, ...]]
"""Turn, dtype, height, width, group."""
Consume = Callable[[list[torch.Tensor], int, int], None]


def shared_bytes(ranks: int) -> int:
    """The size of the memory that a mesh of so many ranks needs: two counters and two slots each."""
    return ranks * 2 * (LINE + SLOT)


class Rounds:
    """One rank's side, in `segment`, which is zeros that all `ranks` map; `timeout` in seconds to wait for a peer.

    Raises OutOfMemory if the segment cannot hold what the mesh needs.
    """

    def __init__(self, segment: Segment, rank: int, ranks: int, timeout: float) -> None:
        segment.reserve(0, shared_bytes(ranks))
        self._rank, self._timeout = rank, timeout
        words = LINE // 8
        counters = segment.memory[: 2 * ranks * LINE].cast("Q")
        # A cache line each, so that a rank that waits disturbs no other.
        self._written, self._read = counters[:: 2 * words], counters[words :: 2 * words]
        slots = segment.bytes[2 * ranks * LINE :]
        self._slots = [[slots[(2 * rank + turn) * SLOT :][:SLOT] for turn in (0, 1)] for rank in range(ranks)]
        self._round = 0
        self._readers: list[tuple[int, ...]] = [(), ()]  # who read this rank's slots when they were last used
        self._pieces: dict[_Shown, list[torch.Tensor]] = {}

    def close(self) -> None:
        self._pieces.clear()
        self._slots.clear()

    def exchange(self, rows: torch.Tensor, group: tuple[int, ...], consume: Consume) -> None:
        """Shows `rows`, a contiguous matrix of as many rows on every rank, to the group, in rounds of some columns;
        `consume` is given the group's pieces and the range of their columns."""
        height, width = rows.shape
        mine = group.index(self._rank)
        columns = max(1, SLOT // (height * rows.itemsize))
        for start, end in pairwise([*range(0, width, columns), width]):
            turn = self._round % 2
            self._wait(self._read, self._readers[turn], self._round - 1)
            pieces = self._shown((turn, rows.dtype, height, end - start, group))
            pieces[mine].copy_(rows if end - start == width else rows[:, start:end])
            self._round += 1
            # The kernel before has given up and taken back the interpreter's lock, so what it wrote is seen first.
            self._written[self._rank] = self._round
            self._wait(self._written, group, self._round)
            consume(pieces, start, end)
            self._read[self._rank] = self._round
            self._readers[turn] = group

    def _shown(self, what: _Shown) -> list[torch.Tensor]:
        """The slots of a group as matrices. They are found again, since making them takes as long as copying much."""
        if what not in self._pieces:
            turn, dtype, height, width, group = what
            nbytes = height * width * dtype.itemsize
            if len(self._pieces) >= MOST_PIECES:
                self._pieces.clear()
            self._pieces[what] = [self._slots[rank][turn][:nbytes].view(dtype).view(height, width) for rank in group]
        return self._pieces[what]

    def _wait(self, counters: memoryview, ranks: tuple[int, ...], least: int) -> None:
        """Until the counters of all `ranks` are `least` or more. Raises WorkerError after the timeout."""
        until = 0.0
        for rank in ranks:
            tries = 0
            while counters[rank] < least:
                tries += 1
                if tries < YIELDS:
                    os.sched_yield()
                    continue
                until = until or time.monotonic() + self._timeout
                if time.monotonic() > until:
                    raise WorkerError(f"rank {rank} did not come to a collective in {self._timeout} s", rank=rank)
                time.sleep(2e-5)
