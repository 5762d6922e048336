"""One program's calls on local workers: arguments and results as places in shared memory.

The places of a training step repeat every second step (state goes back and forth between two locations, inputs between
as many as steps may be under way), so workers are told a `Frame` once and then only its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from samite.errors import InputError
from samite.hal.program import Program
from samite.layout import Layout
from samite.runtime.arena import Location
from samite.runtime.arguments import check_argument, check_layout
from samite.runtime.buffers import Buffer, Buffers
from samite.runtime.messages import Frame, Interface
from samite.runtime.sharding import fill

__all__ = ["Call", "Dispatch"]

FRAMES = 64  # remembered a program, by the owner and by each worker


@dataclass(frozen=True)
class Call:
    """One step ready to go: what to tell the workers, and what becomes of buffers."""

    messages: list[tuple[Any, ...]]
    replaced: list[Buffer]
    made: list[tuple[int, Buffer]]


@dataclass(frozen=True)
class _Place:
    """Where an input of one parity goes, and the local tensors there: one, if every rank reads the same."""

    location: Location
    locals: list[torch.Tensor]


class Dispatch:
    """`intern` gives one object for equal layouts, which makes comparing them cheap; `places` is how many steps may be
    under way."""

    def __init__(self, number: int, program: Program, intern: Callable[[Layout], Layout], places: int) -> None:
        self.number, self.program = number, program
        self.interface = Interface.of(program)
        self._layouts = [intern(argument.layout) for argument in program.arguments]
        self._dtypes = [getattr(torch, dtype) for dtype, _ in self.interface.arguments]
        self._made = [
            (index, intern(result.layout), getattr(torch, dtype), shape)
            for index, (result, (dtype, shape)) in enumerate(zip(program.results, self.interface.results, strict=True))
            if result.alias < 0
        ]
        self._replaced = [(i, result.alias) for i, result in enumerate(program.results) if result.alias >= 0]
        self._inputs: dict[tuple[int, int], _Place] = {}
        self._places = places
        self._frames: dict[tuple[int, ...], tuple[int, Frame]] = {}

    def forget(self) -> None:
        """New workers know no frames."""
        self._frames.clear()

    def prepare(
        self, buffers: Buffers, arguments: Sequence[int | torch.Tensor], results: Sequence[int], step: int
    ) -> Call:
        """Brings inputs to their places. Raises InputError or OutOfMemory, and then no buffer has changed."""
        if (len(arguments), len(results)) != (len(self.program.arguments), len(self.program.results)):
            raise InputError(
                f'"{self.program.name}" takes {len(self.program.arguments)} arguments and gives '
                f"{len(self.program.results)} results, have {len(arguments)} and {len(results)}"
            )
        held: list[Buffer | None] = [None] * len(arguments)
        here: list[Location] = []
        for index, given in enumerate(arguments):
            if isinstance(given, int):
                buffer = held[index] = buffers[given]
                if buffer.layout is not self._layouts[index] or buffer.dtype is not self._dtypes[index]:
                    check_layout(self.program.arguments[index], buffer.layout, buffer.dtype)
                here.append(buffer.current)
            else:
                here.append(self._input(buffers, index, given, step))
        there: list[Location | None] = [None] * len(here)
        replaced: list[Buffer] = []
        for index, alias in self._replaced:
            buffer = held[alias]
            if buffer is None or results[index] != arguments[alias]:
                raise InputError(
                    f'result "{self.program.results[index].name}" replaces '
                    f'"{self.program.arguments[alias].name}": both are one buffer'
                )
            replaced.append(buffer)
            there[alias] = buffer.spare or buffers.reserve(buffer)
        made = self._new_buffers(buffers, results)
        frame, messages = self._frame(here, there)
        messages.append(("run", self.number, frame, step, tuple(buffer.current for _, buffer in made)))
        return Call(messages, replaced, made)

    def _input(self, buffers: Buffers, index: int, value: torch.Tensor, step: int) -> Location:
        argument = self.program.arguments[index]
        check_argument(argument, value.shape, value.dtype, value.device.type)
        key = index, step % self._places
        if (place := self._inputs.get(key)) is None:
            place = self._inputs[key] = self._new_place(buffers, index)
        value = value.detach()
        if place.location.stride == 0:
            place.locals[0].copy_(value)
        else:
            for rank, local in enumerate(place.locals):
                fill(local, value, argument.layout, self.program.mesh, rank)
        return place.location

    def _new_place(self, buffers: Buffers, index: int) -> _Place:
        dtype, shape = self._dtypes[index], self.interface.arguments[index][1]
        shared = self._layouts[index].is_replicated
        location = buffers.arena.allocate(prod(shape) * dtype.itemsize, shared=shared)
        ranks = 1 if shared else self.program.mesh.size
        return _Place(location, [buffers.arena.view(location, rank, dtype, shape) for rank in range(ranks)])

    def _new_buffers(self, buffers: Buffers, results: Sequence[int]) -> list[tuple[int, Buffer]]:
        made: list[tuple[int, Buffer]] = []
        try:
            for index, layout, dtype, shape in self._made:
                location = buffers.arena.allocate(prod(shape) * dtype.itemsize)
                made.append((results[index], Buffer(layout, dtype, shape, location)))
        except BaseException:
            for _, buffer in made:
                buffers.arena.release(buffer.current)
            raise
        return made

    def _frame(self, here: list[Location], there: list[Location | None]) -> tuple[int, list[tuple[Any, ...]]]:
        """The number of a frame, and the message that tells it to the workers if they do not know it."""
        # By identity, which is quick to compare: a location that a remembered frame holds is no other's.
        key = (*map(id, here), *map(id, there))
        if (known := self._frames.get(key)) is not None:
            return known[0], []
        number = len(self._frames)
        if number == FRAMES:  # the oldest makes room
            number, _ = self._frames.pop(next(iter(self._frames)))
        frame = Frame(tuple(here), tuple(there))
        self._frames[key] = number, frame
        return number, [("frame", self.number, number, frame)]
