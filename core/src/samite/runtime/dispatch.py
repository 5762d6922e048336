"""One program's calls on local workers: arguments and results as places in shared memory.

The places of a training step repeat every second step (state goes back and forth between two locations, inputs between
as many as steps may be under way), so workers are told a `Frame` once and then only its number. Its buffers are the
same at every call, which is quicker to see than to check them one by one.
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
from samite.runtime.sharding import fill, home_ranks

__all__ = ["Call", "Dispatch"]

FRAMES = 64  # remembered a program, by the owner and by each worker


@dataclass(frozen=True)
class Call:
    """One step ready to go: what to tell the workers, and what becomes of buffers."""

    messages: list[tuple[Any, ...]]
    replaced: Sequence[Buffer]
    made: list[tuple[int, Buffer]]


@dataclass(frozen=True)
class _Place:
    """Where an input of one parity goes, and the local tensors there: one, if all ranks that have it read the same."""

    location: Location
    locals: list[torch.Tensor]


@dataclass(frozen=True)
class _Steady:
    """What a call was found to be right with: buffers `numbers` as the arguments `at`, tensors as all `others`, and
    buffers `replaced` as the results that replace state. Another call with the same is right too."""

    types: Sequence[type]
    at: Sequence[int]
    others: Sequence[int]
    numbers: Sequence[int]
    held: Sequence[Buffer]
    results: Sequence[int]
    replaced: Sequence[Buffer]

    def holds(self, buffers: Buffers, arguments: Sequence[int | torch.Tensor], results: Sequence[int]) -> bool:
        return (
            list(map(type, arguments)) == self.types
            and [arguments[index] for index in self.at] == self.numbers
            and results == self.results
            and list(buffers.held(self.numbers)) == self.held
        )


class Dispatch:
    """`intern` gives one object for equal layouts, which makes comparing them cheap; `places` is how many steps may be
    under way."""

    def __init__(self, number: int, program: Program, intern: Callable[[Layout], Layout], places: int) -> None:
        self.number, self.program = number, program
        self.interface = Interface.of(program)
        self._layouts = [intern(argument.layout) for argument in program.arguments]
        self._dtypes = [getattr(torch, dtype) for dtype, _, _ in self.interface.arguments]
        self._made = [
            (index, intern(result.layout), getattr(torch, dtype), shape)
            for index, (result, (dtype, shape, _)) in enumerate(
                zip(program.results, self.interface.results, strict=True)
            )
            if result.alias < 0
        ]
        self._replacing = [index for index, result in enumerate(program.results) if result.alias >= 0]
        self._replaced = [program.results[index].alias for index in self._replacing]
        self._steady: _Steady | None = None
        self._inputs: dict[tuple[int, int], _Place] = {}
        self._places = places
        self._frames: list[Frame] = []  # by number
        self._told = 0

    def forget(self) -> None:
        """New workers know no frames."""
        self._frames.clear()
        self._told = 0

    def prepare(
        self, buffers: Buffers, arguments: Sequence[int | torch.Tensor], results: Sequence[int], step: int
    ) -> Call:
        """Brings inputs to their places. Raises InputError or OutOfMemory, and then no buffer has changed."""
        if (len(arguments), len(results)) != (len(self.program.arguments), len(self.program.results)):
            raise InputError(
                f'"{self.program.name}" takes {len(self.program.arguments)} arguments and gives '
                f"{len(self.program.results)} results, have {len(arguments)} and {len(results)}"
            )
        known = self._steady
        if known is None or not known.holds(buffers, arguments, [results[index] for index in self._replacing]):
            known = self._steady = self._checked(buffers, arguments, results)
        here: list[Any] = [None] * len(arguments)
        for index, buffer in zip(known.at, known.held, strict=True):
            here[index] = buffer.current
        for index in known.others:
            here[index] = self._input(buffers, index, arguments[index], step)
        there: list[Location | None] = [None] * len(here)
        for alias, buffer in zip(self._replaced, known.replaced, strict=True):
            there[alias] = buffer.spare or buffers.reserve(buffer)
        made = self._new_buffers(buffers, results)
        frame, messages = self._frame(here, there)
        messages.append(("run", self.number, frame, step, tuple(buffer.current for _, buffer in made)))
        return Call(messages, known.replaced, made)

    def _checked(self, buffers: Buffers, arguments: Sequence[int | torch.Tensor], results: Sequence[int]) -> _Steady:
        """Raises InputError if the buffers are not what the program takes."""
        numbers: dict[int, int] = {}
        held: dict[int, Buffer] = {}
        for index, given in enumerate(arguments):
            if isinstance(given, int):
                numbers[index] = given
                buffer = held[index] = buffers[given]
                if buffer.layout is not self._layouts[index] or buffer.dtype is not self._dtypes[index]:
                    check_layout(self.program.arguments[index], buffer.layout, buffer.dtype)
        for index, alias in zip(self._replacing, self._replaced, strict=True):
            if alias not in held or results[index] != arguments[alias]:
                raise InputError(
                    f'result "{self.program.results[index].name}" replaces '
                    f'"{self.program.arguments[alias].name}": both are one buffer'
                )
        return _Steady(
            list(map(type, arguments)),
            list(held),
            [index for index in range(len(arguments)) if index not in held],
            list(numbers.values()),
            list(held.values()),
            [results[index] for index in self._replacing],
            [held[alias] for alias in self._replaced],
        )

    def _input(self, buffers: Buffers, index: int, value: Any, step: int) -> Location:
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
        dtype, (_, shape, home) = self._dtypes[index], self.interface.arguments[index]
        shared = self._layouts[index].unpinned().is_replicated
        location = buffers.arena.allocate(prod(shape) * dtype.itemsize, shared=shared, ranks=home)
        ranks = (home or (0,))[:1] if shared else range(self.program.mesh.size)
        return _Place(location, [buffers.arena.view(location, rank, dtype, shape) for rank in ranks])

    def _new_buffers(self, buffers: Buffers, results: Sequence[int]) -> list[tuple[int, Buffer]]:
        made: list[tuple[int, Buffer]] = []
        try:
            for index, layout, dtype, shape in self._made:
                ranks = home_ranks(layout, self.program.mesh)
                location = buffers.arena.allocate(prod(shape) * dtype.itemsize, ranks=ranks)
                made.append((results[index], Buffer(layout, dtype, shape, location)))
        except BaseException:
            for _, buffer in made:
                buffers.arena.release(buffer.current)
            raise
        return made

    def _frame(self, here: list[Location], there: list[Location | None]) -> tuple[int, list[tuple[Any, ...]]]:
        """The number of a frame, and the message that tells it to the workers if they do not know it."""
        frame = Frame(tuple(here), tuple(there))
        # By comparing, since locations are the same objects again and a hash would look into each of them.
        if frame in self._frames:
            return self._frames.index(frame), []
        number = self._told % FRAMES  # the oldest makes room
        self._frames[number : number + 1] = [frame]
        self._told += 1
        return number, [("frame", self.number, number, frame)]
