"""State of a program on a worker: slots that look at shared memory, where a step's frame says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from samite.hal.driver import StateSlot
from samite.runtime.board import Board

__all__ = ["Slot", "Slots"]


class Slots:
    """The slots of one program. A step looks at all of them anew, so they share what it says."""

    def __init__(self, board: Board, shapes: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> None:
        self._board = board
        # Until the first step there is no state: memory of its shape, for a backend that warms up when it binds.
        self.current = [torch.empty(shape, dtype=dtype) for dtype, shape in shapes]
        self.following: Sequence[torch.Tensor | None] = [None] * len(shapes)
        self._before = self._over = 0  # the step before this one, and the last that all ranks are known to have ended
        self.all = [Slot(self, index) for index in range(len(shapes))]

    def point(self, current: Sequence[torch.Tensor], following: Sequence[torch.Tensor | None], step: int) -> None:
        """For step number `step`: where each state is, and where the next one goes (None: it stays)."""
        self.current, self.following = list(current), following
        self._before = step - 1

    def wait(self) -> None:
        """Until every rank has ended the step before. Till then, its failure would still go back to the values that
        the memory of the next ones holds. A rank is rarely a whole step ahead of another, so it rarely waits."""
        pause = 0.0
        while self._over < self._before:
            self._over = self._board.done()
            if self._over < self._before:
                time.sleep(pause)
                pause = min(pause + 2e-5, 1e-3)


@dataclass
class Slot(StateSlot):
    """One state. Its `spare` memory is where the owner expects the next value."""

    slots: Slots
    index: int

    @property
    def value(self) -> torch.Tensor:
        return self.slots.current[self.index]

    @value.setter
    def value(self, new: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if new is not self.slots.following[self.index]:  # else it was written where `spare` said
            memory = self.spare()
            assert memory is not None, "a state that a program replaces has memory for the next value"
            new = memory.copy_(new)
        self.slots.current[self.index] = new

    def spare(self) -> torch.Tensor | None:
        self.slots.wait()
        return self.slots.following[self.index]
