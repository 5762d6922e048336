"""A worker: one rank of a mesh. It loads programs and runs steps as its owner tells it (see `messages`).

It has no tensor of its own. State, inputs and results lie in segments that the owner made, and each message of a step
says where; so what the last complete step left outlives the worker.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from samite import plugins
from samite.errors import UnsupportedOp
from samite.hal.driver import Bound, Device, Driver, Executable, Group
from samite.hal.program import Program
from samite.hal.shared import Segment
from samite.runtime.arena import Location, view
from samite.runtime.board import Board, Sequenced
from samite.runtime.channel import Channel
from samite.runtime.messages import Assignment, Failure, Frame, Interface
from samite.runtime.shared import Shared
from samite.runtime.slots import Slots

__all__ = ["Worker", "serve"]

RESULTS = 256  # places of results that a worker remembers


def serve(channel: Channel) -> None:
    """Does what the owner says until the owner closes the channel."""
    try:
        (_, assignment), (board, *exchange) = channel.receive()
        try:
            options = {"shared_memory": Segment(exchange[0])} if exchange else {}
            worker = Worker(assignment, Board(Segment(board), assignment.mesh.size), options)
        except Exception as error:
            channel.send(("failed", Failure.of(error, assignment.rank)))
        else:
            channel.send(("started",))
            while worker.usable:
                (verb, *arguments), fds = channel.receive()
                if (answer := worker.answer(verb, arguments, fds)) is not None:
                    channel.send(answer)
        channel.receive()  # the owner ends a worker that failed: by itself it would seem to have died
    except (EOFError, OSError):
        return


@dataclass
class _View:
    """A frame as tensors: where each state is and where its next value goes, and the other arguments."""

    current: list[torch.Tensor]
    following: list[torch.Tensor | None]
    inputs: list[torch.Tensor]


@dataclass
class _Loaded:
    interface: Interface
    slots: Slots
    bound: Bound
    plain: list[tuple[torch.dtype, tuple[int, ...]]]  # of the results that replace no state
    views: dict[int, _View] = field(default_factory=dict[int, _View])


class Worker:
    """One rank. `usable` is False once a step has failed."""

    def __init__(self, assignment: Assignment, board: Board, options: Mapping[str, Any]) -> None:
        os.chdir(assignment.directory)
        sys.path[:] = assignment.path
        torch.set_num_threads(assignment.threads)
        _keep_memory()
        for module in assignment.imports:
            importlib.import_module(module)
        self.rank, self.usable = assignment.rank, True
        self._mesh, self._board = assignment.mesh, board
        self._driver: Driver = plugins.driver(assignment.mesh.backends[0])
        self._devices: Sequence[Device] = self._driver.devices()
        group = Group(
            assignment.mesh,
            assignment.rank,
            assignment.address,
            assignment.generation,
            {**assignment.communicator_options, **options},
        )
        self._communicator: Sequenced | None = None
        if self._driver.collectives == "communicator":
            self._communicator = Sequenced(self._driver.communicator(group), board.rows[self.rank])
        self._memory: dict[int, torch.Tensor] = {}
        self._result = lru_cache(RESULTS)(self._view)  # where results go: the same places again
        self._executables: dict[int, Executable] = {}  # compiled here, not yet loaded
        self._shared = Shared(self._driver)
        self._programs: dict[int, _Loaded] = {}

    def answer(self, verb: str, arguments: Sequence[Any], fds: Sequence[int]) -> tuple[Any, ...] | None:
        """Carries out one message; gives the answer to it, if it has one."""
        step = arguments[2] if verb == "run" else 0
        try:
            if verb == "segment":
                segment = Segment(fds[0])
                self._memory[arguments[0]] = segment.bytes
                segment.close()
                return None
            return getattr(self, f"_{verb}")(*arguments)
        except Exception as error:
            self.usable = verb != "run"
            inside = self._communicator is not None and self._communicator.inside
            return "failed", Failure.of(error, self.rank, step, inside)

    def _compile(self, program: int, given: Program, options: Mapping[str, Any]) -> tuple[Any, ...]:
        executable = self._executables[program] = self._shared.compile(given, [self._device()], options)
        try:
            return "compiled", program, executable.save()
        except UnsupportedOp:
            return "compiled", program, None

    def _load(
        self,
        program: int,
        interface: Interface,
        given: Program | None,
        options: Mapping[str, Any],
        artifact: bytes | None,
    ) -> tuple[Any, ...]:
        executable = self._executables.pop(program, None)
        if executable is None and artifact is not None:
            executable = self._driver.load(artifact, [self._device()])
        elif executable is None:
            assert given is not None, "without an artifact the program comes along"
            executable = self._shared.compile(given, [self._device()], options)
        interface = interface.on(self.rank)
        state = [
            (getattr(torch, dtype), shape)
            for (dtype, shape, _), is_state in zip(interface.arguments, interface.state, strict=True)
            if is_state
        ]
        slots = Slots(self._board, state)
        bound = executable.bind(slots.all, self._communicator, self.rank)
        plain = [
            (getattr(torch, dtype), shape)
            for (dtype, shape, _), alias in zip(interface.results, interface.alias, strict=True)
            if alias < 0
        ]
        self._programs[program] = _Loaded(interface, slots, bound, plain)
        return "loaded", program

    def _frame(self, program: int, number: int, frame: Frame) -> None:
        loaded = self._programs[program]
        seen = _View([], [], [])
        columns = zip(loaded.interface.arguments, loaded.interface.state, frame.arguments, frame.following, strict=True)
        for (dtype, shape, _), is_state, here, there in columns:
            current = self._view(here, getattr(torch, dtype), shape)
            if is_state:
                seen.current.append(current)
                seen.following.append(there and self._view(there, current.dtype, shape))
            else:
                seen.inputs.append(current)
        loaded.views[number] = seen

    def _run(self, program: int, frame: int, step: int, results: Sequence[Location]) -> tuple[Any, ...]:
        loaded = self._programs[program]
        seen = loaded.views[frame]
        loaded.slots.point(seen.current, seen.following, step)
        outputs, event = loaded.bound.run(seen.inputs)
        event.wait()
        for output, (dtype, shape), location in zip(outputs, loaded.plain, results, strict=True):
            self._result(location, dtype, shape).copy_(output)
        self._board.rows[self.rank].end(step)
        return "ended", step

    def _view(self, at: Location, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        return view(self._memory[at.segment], at, self.rank, dtype, shape)

    def _device(self) -> Device:
        return self._devices[self.rank % len(self._devices)]


def _keep_memory() -> None:
    """Has glibc keep what is freed. By default it gives blocks above 32 MB back to the kernel at once, and the next
    step faults every page in again (a step over 64 MB tensors takes 77 ms then, and 29 ms so)."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        # Older versions take no more than 32 MB, and say so.
        _ = library.mallopt(_M_MMAP_THRESHOLD, 2**30) or library.mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
