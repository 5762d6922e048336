"""The engine of one device and no process of its own: programs run here, on the mesh's backend.

State lives in the slots of bound programs. A new value is memory of its own and takes the place of the old one only
when the whole step has run, so a step that raises leaves every buffer as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from samite import plugins
from samite.errors import MeshError
from samite.hal import hookimpl
from samite.hal.driver import Bound, Communicator, Executable, StateSlot
from samite.hal.engine import Engine
from samite.hal.program import Argument, Program
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.arguments import check_argument, check_layout, missing_buffer
from samite.runtime.artifacts import Artifacts
from samite.runtime.finished import Finished
from samite.runtime.options import check_options
from samite.runtime.sharding import assemble, lay
from samite.runtime.shared import Shared

__all__ = ["InProcess", "InProcessWorkers", "Plugin"]


class Plugin:
    org = "samite"

    @hookimpl
    def samite_add_engines(self) -> Mapping[str, Callable[[], Engine]]:
        return {"inprocess": InProcess}


class InProcess:
    """Takes no options."""

    max_ranks = 1

    def start(self, mesh: Mesh, options: Mapping[str, Any]) -> InProcessWorkers:
        check_options("inprocess", options, [])
        if mesh.size > 1:
            raise MeshError(f'mesh "{mesh}" has {mesh.size} ranks; the inprocess engine has one', help='engine="local"')
        return InProcessWorkers(mesh)


@dataclass
class Slot(StateSlot):
    """One local buffer of this process."""

    value: torch.Tensor
    layout: Layout


@dataclass
class _Loaded:
    program: Program
    executable: Executable
    bound: dict[tuple[int, ...], Bound] = field(default_factory=dict[tuple[int, ...], Bound])  # by buffers of state


class InProcessWorkers:
    """This process as rank `rank` of the mesh; with `communicator` as one of several, which all do the same."""

    def __init__(self, mesh: Mesh, rank: int = 0, communicator: Communicator | None = None) -> None:
        self.mesh, self.rank, self.communicator = mesh, rank, communicator
        self._driver = plugins.driver(mesh.backends[0])
        self._shared = Shared(self._driver, mesh.backends[0], Artifacts.configured())
        self._programs: list[_Loaded] = []
        self._buffers: dict[int, Slot] = {}

    def load(self, program: Program, options: Mapping[str, Any]) -> int:
        devices = self._driver.devices()
        executable = self._shared.compile(program, [devices[self.rank % len(devices)]], options)
        self._programs.append(_Loaded(program, executable))
        return len(self._programs) - 1

    def write(self, buffer: int, value: torch.Tensor, layout: Layout) -> None:
        self.free([buffer])
        local = lay(value.detach(), layout, self.mesh, self.rank).clone()
        self._buffers[buffer] = Slot(local, layout)

    def read(self, buffer: int) -> torch.Tensor:
        local, layout = self.local(buffer)
        return assemble([local], layout, self.mesh)

    def local(self, buffer: int) -> tuple[torch.Tensor, Layout]:
        held = self._buffer(buffer)
        held.value = held.value.contiguous()
        return held.value, held.layout

    def put(self, buffer: int, local: torch.Tensor, layout: Layout) -> None:
        self.free([buffer])
        self._buffers[buffer] = Slot(local, layout)

    def agree(self, what: str, values: Sequence[tuple[str, int]] = ()) -> None:
        """There is nobody to disagree with."""

    def run(self, program: int, arguments: Sequence[int | torch.Tensor], results: Sequence[int]) -> Finished:
        loaded = self._programs[program]
        inputs: list[torch.Tensor] = []
        state: list[int] = []
        for argument, given in zip(loaded.program.arguments, arguments, strict=True):
            if isinstance(given, torch.Tensor):
                inputs.append(self._input(argument, given))
            else:
                held = self._buffer(given)
                check_layout(argument, held.layout, held.value.dtype)
                if argument.kind == "state":
                    state.append(given)
                else:
                    inputs.append(held.value)
        outputs, event = self._bound(loaded, tuple(state)).run(inputs)
        event.wait()
        made = (
            (result.layout, buffer)
            for result, buffer in zip(loaded.program.results, results, strict=True)
            if result.alias < 0
        )
        for value, (layout, buffer) in zip(outputs, made, strict=True):
            self.free([buffer])
            self._buffers[buffer] = Slot(value.contiguous(), layout)
        return Finished()

    def free(self, buffers: Sequence[int]) -> None:
        for buffer in buffers:
            if self._buffers.pop(buffer, None) is not None:
                self._unbind(buffer)

    def restart(self) -> None:
        """Does nothing: no failure ends this process."""

    def close(self) -> None:
        for loaded in self._programs:
            for bound in loaded.bound.values():
                bound.close()
        self._programs.clear()
        self._buffers.clear()

    def _input(self, argument: Argument, given: torch.Tensor) -> torch.Tensor:
        check_argument(argument, given.shape, given.dtype, given.device.type)
        # A copy, because a result may be the argument itself, and the caller may write to its tensor.
        return lay(given.detach(), argument.layout, self.mesh, self.rank).clone()

    def _bound(self, loaded: _Loaded, state: tuple[int, ...]) -> Bound:
        if state not in loaded.bound:
            slots = [self._buffers[buffer] for buffer in state]
            loaded.bound[state] = loaded.executable.bind(slots, self.communicator, self.rank)
        return loaded.bound[state]

    def _unbind(self, buffer: int) -> None:
        for loaded in self._programs:
            for state in [state for state in loaded.bound if buffer in state]:
                loaded.bound.pop(state).close()

    def _buffer(self, buffer: int) -> Slot:
        if buffer not in self._buffers:
            raise missing_buffer(buffer)
        return self._buffers[buffer]
