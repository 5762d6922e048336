"""The dialect's collectives among ranks of one host, through memory that all of them map.

Every rank has two slots, used in turn. In one round of a collective it copies a piece of its operand to a slot, says
so, waits until its peers have, and reads what it needs of theirs. It uses the slot again two rounds later, when all who
read it have said that they are through. All ranks of a mesh run the same rounds in the same order, each within its own
group, so a round has one number everywhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from samite.errors import WorkerError
from samite.hal.driver import Communicator, Group
from samite.hal.shared import Segment
from samite.runtime.interpreter import REDUCE
from samite_cpu.stacking import joined, stacked

__all__ = ["HostCommunicator", "shared_bytes"]

SLOT = 2**20  # bytes: small enough to be read from a cache, large enough that waiting does not count
LINE = 64
YIELDS = 100  # tries before a waiting rank sleeps; a peer is seldom more than some microseconds late
TWO_PHASES = 2**16  # bytes of an all-reduce above which more than two ranks share the work of reducing

MOST_PIECES = 1024  # shapes of collectives that are remembered

_Shown = tuple[int, torch.dtype, int, int, tuple[int, ...]]
"""Turn, dtype, height, width, group."""
Consume = Callable[[list[torch.Tensor], int, int], None]


def shared_bytes(ranks: int) -> int:
    """The size of the memory that a mesh of so many ranks needs: two counters and two slots each."""
    return ranks * 2 * (LINE + SLOT)


class HostCommunicator(Communicator):
    """One rank's collectives. Reductions are in the order of the group, so every rank has the same bits.

    `group.options`: `shared_memory`, a segment of zeros that all ranks map; `timeout_s` to wait for a peer (default:
    for ever, for engines that watch their ranks). OutOfMemory if the segment cannot hold what the mesh needs.
    """

    def __init__(self, group: Group) -> None:
        segment: Segment = group.options["shared_memory"]
        segment.reserve(0, shared_bytes(group.mesh.size))
        self._mesh, self._rank = group.mesh, group.rank
        self._timeout = float(group.options.get("timeout_s", "inf"))
        ranks, words = group.mesh.size, LINE // 8
        counters = segment.memory[: 2 * ranks * LINE].cast("Q")
        # A cache line each, so that a rank that waits disturbs no other.
        self._written, self._read = counters[:: 2 * words], counters[words :: 2 * words]
        slots = segment.bytes[2 * ranks * LINE :]
        self._slots = [[slots[(2 * rank + turn) * SLOT :][:SLOT] for turn in (0, 1)] for rank in range(ranks)]
        self._round = 0
        self._readers: list[tuple[int, ...]] = [(), ()]  # who read this rank's slots when they were last used
        self._peers: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._pieces: dict[_Shown, list[torch.Tensor]] = {}

    def all_reduce(self, x: torch.Tensor, axes: Sequence[str], reduce_type: str) -> torch.Tensor:
        group = self._group(axes)
        if len(group) == 1 or not x.numel():
            return x
        if len(group) > 2 and x.nbytes > TWO_PHASES:
            return self._all_reduce_in_two(x, axes, reduce_type)
        flat = x.contiguous().view(1, -1)
        total = torch.empty_like(flat)
        self._exchange(flat, group, lambda parts, start, end: _reduce(parts, reduce_type, total[:, start:end]))
        return total.view(x.shape)

    def _all_reduce_in_two(self, x: torch.Tensor, axes: Sequence[str], reduce_type: str) -> torch.Tensor:
        """Each rank reduces its part for all."""
        parts = len(self._group(axes))
        size = -(-x.numel() // parts)
        padded = x.new_zeros(parts * size)
        padded[: x.numel()] = x.reshape(-1)
        mine = self.reduce_scatter(padded, axes, 0, reduce_type)
        return self.all_gather(mine, axes, 0)[: x.numel()].view(x.shape)

    def all_gather(self, x: torch.Tensor, axes: Sequence[str], dim: int) -> torch.Tensor:
        group = self._group(axes)
        if len(group) == 1:
            return x
        gathered = x.new_empty((len(group), *x.shape))
        rows = gathered.view(len(group), -1)

        def consume(parts: list[torch.Tensor], start: int, end: int) -> None:
            for row, part in zip(rows, parts, strict=True):
                row[start:end].copy_(part[0])

        self._exchange(x.contiguous().view(1, -1), group, consume)
        return joined(gathered, dim)

    def reduce_scatter(self, x: torch.Tensor, axes: Sequence[str], dim: int, reduce_type: str) -> torch.Tensor:
        group = self._group(axes)
        if len(group) == 1:
            return x
        mine, chunks = group.index(self._rank), stacked(x, dim, len(group))
        total = x.new_empty(chunks.shape[1:])
        row = total.view(-1)

        def consume(parts: list[torch.Tensor], start: int, end: int) -> None:
            _reduce([part[mine] for part in parts], reduce_type, row[start:end])

        self._exchange(chunks.view(len(group), -1), group, consume)
        return total

    def all_to_all(self, x: torch.Tensor, axes: Sequence[str], split_dim: int, concat_dim: int) -> torch.Tensor:
        group = self._group(axes)
        if len(group) == 1:
            return x
        mine, chunks = group.index(self._rank), stacked(x, split_dim, len(group))
        received = torch.empty_like(chunks)
        rows = received.view(len(group), -1)

        def consume(parts: list[torch.Tensor], start: int, end: int) -> None:
            for row, part in zip(rows, parts, strict=True):
                row[start:end].copy_(part[mine])

        self._exchange(chunks.view(len(group), -1), group, consume)
        return joined(received, concat_dim)

    def permute(self, x: torch.Tensor, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
        group = self._group(axes)
        received = torch.zeros_like(x, memory_format=torch.contiguous_format)
        row = received.view(-1)
        sources = [source for source, target in pairs if group[target] == self._rank]

        def consume(parts: list[torch.Tensor], start: int, end: int) -> None:
            for source in sources:
                row[start:end].copy_(parts[source][0])

        self._exchange(x.contiguous().view(1, -1), group, consume)
        return received

    def barrier(self) -> None:
        self._exchange(torch.zeros(1, 1), self._group(self._mesh.axes), lambda parts, start, end: None)

    def close(self) -> None:
        self._pieces.clear()
        self._slots.clear()

    def _group(self, axes: Sequence[str]) -> tuple[int, ...]:
        """This rank's peers along `axes`, in their order."""
        key = tuple(axes)
        if key not in self._peers:
            self._peers[key] = self._mesh.peers(self._rank, key)
        return self._peers[key]

    def _exchange(self, rows: torch.Tensor, group: tuple[int, ...], consume: Consume) -> None:
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


def _reduce(parts: Sequence[torch.Tensor], reduce_type: str, total: torch.Tensor) -> None:
    reduce = REDUCE[reduce_type]
    reduce(parts[0], parts[1], out=total)
    for part in parts[2:]:
        reduce(total, part, out=total)
