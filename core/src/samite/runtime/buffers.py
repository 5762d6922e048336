"""The buffers of a mesh as transactions: a step makes its changes at once, and they count when all ranks have ended it.

A buffer that a step replaces has two locations. The step reads one and writes the other, and the next step the other
way round, so the value before the last step under way is always whole; a failure goes back to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from samite.layout import Layout
from samite.runtime.arena import Arena, Location
from samite.runtime.arguments import missing_buffer

__all__ = ["Buffer", "Buffers"]


@dataclass(slots=True, eq=False)
class Buffer:
    """`current` holds the value as of `step`, the last step under way that replaces it (0: none did); `spare` is
    where the next value goes, from the first time that a step replaces it."""

    layout: Layout
    dtype: torch.dtype
    shape: tuple[int, ...]  # local
    current: Location
    spare: Location | None = None
    step: int = 0

    @property
    def locations(self) -> list[Location]:
        return [self.current] if self.spare is None else [self.current, self.spare]


@dataclass
class _Step:
    """What is to be undone if a step fails, and given back when it has ended."""

    flipped: list[tuple[Buffer, int]] = field(default_factory=list[tuple[Buffer, int]])  # and its `step` before
    made: list[tuple[int, Buffer, Buffer | None]] = field(default_factory=list[tuple[int, Buffer, "Buffer | None"]])
    freed: list[Location] = field(default_factory=list[Location])  # while it was the newest


class Buffers:
    """By number. Steps are opened in order, and committed or rolled back in order."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._held: dict[int, Buffer] = {}
        self._open: deque[_Step] = deque()

    def __getitem__(self, number: int) -> Buffer:
        """Raises InputError if there is none."""
        try:
            return self._held[number]
        except KeyError:
            raise missing_buffer(number) from None

    def held(self, numbers: Iterable[int]) -> Iterator[Buffer | None]:
        """The buffers of these numbers, None where there is none."""
        return map(self._held.get, numbers)

    def put(self, number: int, buffer: Buffer) -> None:
        """A new value that no step made."""
        self.free([number])
        self._held[number] = buffer

    def free(self, numbers: Sequence[int]) -> None:
        """What steps under way may still read or write is given back after them."""
        for number in numbers:
            if (buffer := self._held.pop(number, None)) is not None:
                for location in buffer.locations:
                    if self._open:
                        self._open[-1].freed.append(location)
                    else:
                        self.arena.release(location)

    def reserve(self, buffer: Buffer) -> Location:
        """Where the next value of a buffer goes. Raises OutOfMemory, and then changes nothing."""
        if buffer.spare is None:
            buffer.spare = self.arena.allocate(buffer.current.stride, ranks=buffer.current.ranks)
        return buffer.spare

    def open(self, step: int, replaced: Sequence[Buffer], made: list[tuple[int, Buffer]]) -> None:
        """A step is under way that replaces some buffers (all reserved for) and makes others."""
        opened = _Step([(buffer, buffer.step) for buffer in replaced])
        for buffer in replaced:  # not by `_flip`: of all that a call costs, this is done most often
            buffer.current, buffer.spare, buffer.step = buffer.spare, buffer.current, step  # pyright: ignore
        for number, buffer in made:
            opened.made.append((number, buffer, self._held.get(number)))
            self._held[number] = buffer
            buffer.step = step
        self._open.append(opened)

    def commit(self) -> None:
        """The oldest step under way has ended on all ranks."""
        step = self._open.popleft()
        for _, _, before in step.made:
            if before is not None:
                step.freed.extend(before.locations)
        for location in step.freed:
            self.arena.release(location)

    def roll_back(self) -> None:
        """Every step under way has failed: all buffers are what they were before the oldest, less what was freed."""
        gone: list[Location] = []
        while self._open:
            step = self._open.pop()
            gone.extend(step.freed)
            for number, new, before in step.made:
                if self._held.get(number) is not new:  # freed or written since
                    gone.extend(before.locations if before is not None else [])
                    continue
                gone.extend(self._held.pop(number).locations)
                if before is not None:
                    self._held[number] = before
            for buffer, before in step.flipped:
                _flip(buffer, before)
        for location in gone:
            self.arena.release(location)


def _flip(buffer: Buffer, step: int) -> None:
    assert buffer.spare is not None, "a step replaces what was reserved for"
    buffer.current, buffer.spare, buffer.step = buffer.spare, buffer.current, step
