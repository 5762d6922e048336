"""Where tensors of local workers lie: ranges of shared segments, given out by the process that owns the workers.

Every local buffer of a value has the same size, so one range holds all of them, rank by rank. The owner hands out
numbers and both sides map the same bytes; no tensor is ever sent.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch

from samite.hal.shared import Segment

__all__ = ["Arena", "Location", "view"]

SEGMENT = 256 * 2**20  # bytes of address space; memory is taken as ranges are given out
ALIGNMENT = 64  # a cache line: vector loads, and no two ranks write to one line
PAGE = 4096


class Location(NamedTuple):
    """The local buffers of one value: that of the r-th of `ranks`, in order, starts at `offset + r * stride`. A stride
    of 0: one buffer for all. No ranks named: every rank has one."""

    segment: int
    offset: int
    stride: int
    ranks: tuple[int, ...] = ()


def view(memory: torch.Tensor, at: Location, rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """The local tensor of `rank`, given the bytes of its segment; an empty one, of shape (0,), if it has no buffer."""
    if at.ranks:
        if rank not in at.ranks:
            return memory[:0].view(dtype)
        rank = at.ranks.index(rank)
    start = at.offset + rank * at.stride
    return memory[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)


@dataclass
class _Space:
    """One segment: its free ranges by offset, and the end of the part that has memory."""

    segment: Segment
    free: list[tuple[int, int]]  # (offset, end), apart from each other
    reserved: int = 0


class Arena:
    """First fit over as many segments as it takes."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._spaces: list[_Space] = []
        self._sizes: dict[Location, int] = {}

    @property
    def segments(self) -> list[Segment]:
        """By number."""
        return [space.segment for space in self._spaces]

    def allocate(self, nbytes: int, *, shared: bool = False, ranks: tuple[int, ...] = ()) -> Location:
        """Room for a buffer of `nbytes` a rank (`shared`: one for all), or for each of `ranks` if they are given.
        OutOfMemory changes nothing."""
        unit = PAGE if nbytes >= PAGE else ALIGNMENT
        stride = -(-max(nbytes, 1) // unit) * unit
        size = stride if shared else stride * (len(ranks) or self._ranks)
        number, index, offset = self._find(size)
        space = self._spaces[number]
        if offset + size > space.reserved:
            space.segment.reserve(space.reserved, offset + size - space.reserved)
            space.reserved = offset + size
        _, end = space.free[index]
        space.free[index : index + 1] = [(offset + size, end)] if offset + size < end else []
        location = Location(number, offset, 0 if shared else stride, ranks)
        self._sizes[location] = size
        return location

    def release(self, location: Location) -> None:
        """Gives a location back. Its memory stays with the arena."""
        free = self._spaces[location.segment].free
        start, end = location.offset, location.offset + self._sizes.pop(location)
        index = bisect.bisect(free, (start, end))
        if index < len(free) and free[index][0] == end:
            end = free.pop(index)[1]
        if index and free[index - 1][1] == start:
            index -= 1
            start = free.pop(index)[0]
        free.insert(index, (start, end))

    def view(self, at: Location, rank: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        return view(self._spaces[at.segment].segment.bytes, at, rank, dtype, shape)

    def close(self) -> None:
        for space in self._spaces:
            space.segment.close()
        self._spaces.clear()
        self._sizes.clear()

    def _find(self, size: int) -> tuple[int, int, int]:
        """(segment, index of the free range, offset) of the first range that holds `size` bytes."""
        for number, space in enumerate(self._spaces):
            for index, (start, end) in enumerate(space.free):
                if end - start >= size:
                    return number, index, start
        segment = Segment.create(max(size, SEGMENT))
        self._spaces.append(_Space(segment, [(0, segment.nbytes)]))
        return len(self._spaces) - 1, 0, 0
