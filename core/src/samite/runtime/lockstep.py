"""The engine that simulates all ranks of a mesh in this process, in lockstep. For tests, debugging and explanation.

It runs the programs that workers run, on the same interpreter, with every collective computed jointly, so results are
deterministic whatever the machine does. Padding is poisoned (NaN, or numbers too large to be indices) and replicas are
compared when they are read, so a program that relies on either being right shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from samite.errors import MeshError, VerifyError
from samite.hal import hookimpl
from samite.hal.engine import Engine
from samite.hal.program import Argument, Program, Result
from samite.layout import Layout
from samite.lowering import to_fx
from samite.mesh import Mesh
from samite.runtime.arguments import check_argument, check_layout, missing_buffer
from samite.runtime.finished import Finished
from samite.runtime.interpreter import generate, run_lockstep
from samite.runtime.lockstep_pipeline import LockstepPipeline
from samite.runtime.options import check_options
from samite.runtime.sharding import assemble, home_ranks, lay

__all__ = ["Lockstep", "LockstepWorkers", "Plugin"]

MAX_RANKS = 64


class Plugin:
    org = "samite"

    @hookimpl
    def samite_add_engines(self) -> Mapping[str, Callable[[], Engine]]:
        return {"lockstep": Lockstep}


class Lockstep:
    """Options: `debug_checks` (default True) compares replicas at every read."""

    max_ranks = MAX_RANKS

    def start(self, mesh: Mesh, options: Mapping[str, Any]) -> LockstepWorkers:
        check_options("lockstep", options, ["debug_checks"])
        if mesh.size > self.max_ranks:
            raise MeshError(
                f'mesh "{mesh}" has {mesh.size} ranks; the lockstep engine simulates up to {self.max_ranks}',
                help="use a smaller mesh",
            )
        return LockstepWorkers(mesh, check=bool(options.get("debug_checks", True)))


@dataclass(frozen=True)
class _Loaded:
    program: Program
    run: Callable[[list[list[torch.Tensor]]], list[tuple[torch.Tensor, ...]]]
    """From every rank's arguments to every rank's results."""


@dataclass(frozen=True)
class _Buffer:
    """A local tensor of every rank, in rank order; empty ones where a pinned value is not held."""

    layout: Layout
    locals: list[torch.Tensor]


class LockstepWorkers:
    """The simulated ranks of a mesh. A step that raises leaves every buffer as it was."""

    def __init__(self, mesh: Mesh, *, check: bool) -> None:
        self.mesh = mesh
        self._check = check
        self._programs: list[_Loaded] = []
        self._buffers: dict[int, _Buffer] = {}

    def load(self, program: Program, options: Mapping[str, Any]) -> int:
        if program.pipeline is not None:
            self._programs.append(_Loaded(program, LockstepPipeline(program).run))
            return len(self._programs) - 1
        code = generate(to_fx(program), program.name)
        mains = [code.bind(self.mesh, rank) for rank in range(self.mesh.size)]
        self._programs.append(_Loaded(program, lambda inputs: run_lockstep(mains, inputs, self.mesh, code)))
        return len(self._programs) - 1

    def write(self, buffer: int, value: torch.Tensor, layout: Layout) -> None:
        value = value.detach().clone()  # what the caller does to its tensor afterwards is its own affair
        self._buffers[buffer] = _Buffer(layout, self._lay(value, layout))

    def read(self, buffer: int) -> torch.Tensor:
        held = self._buffer(buffer)
        return assemble(held.locals, held.layout, self.mesh, check=self._check)

    def run(self, program: int, arguments: Sequence[int | torch.Tensor], results: Sequence[int]) -> Finished:
        loaded = self._programs[program]
        columns = [
            self._column(argument, given) for argument, given in zip(loaded.program.arguments, arguments, strict=True)
        ]
        inputs = [[column[rank] for column in columns] for rank in range(self.mesh.size)]
        with torch.no_grad():
            outputs = loaded.run(inputs)
        made: dict[int, _Buffer] = {}
        for index, (result, buffer) in enumerate(zip(loaded.program.results, results, strict=True)):
            made[buffer] = _Buffer(result.layout, [values[index].contiguous() for values in outputs])
            if result.layout.at:
                self._check_home(result, made[buffer].locals)
        self._buffers.update(made)
        return Finished()

    def free(self, buffers: Sequence[int]) -> None:
        for buffer in buffers:
            self._buffers.pop(buffer, None)

    def restart(self) -> None:
        """There is nothing to restart: ranks that are simulated cannot end."""

    def close(self) -> None:
        self._buffers.clear()
        self._programs.clear()

    def _column(self, argument: Argument, given: int | torch.Tensor) -> list[torch.Tensor]:
        """Every rank's local tensor of one argument."""
        if isinstance(given, torch.Tensor):
            check_argument(argument, given.shape, given.dtype, given.device.type)
            return self._lay(given.detach().clone(), argument.layout)  # a result may be the argument itself
        held = self._buffer(given)
        check_layout(argument, held.layout, held.locals[0].dtype)
        return held.locals

    def _check_home(self, result: Result, locals: Sequence[torch.Tensor]) -> None:
        home = home_ranks(result.layout, self.mesh)
        for rank, local in enumerate(locals):
            if rank not in home and local.shape != (0,):
                raise VerifyError(
                    f'result "{result.name}" is laid out as {result.layout}, rank {rank} gives {list(local.shape)}',
                    help="a rank gives an empty tensor, of shape (0,), in place of what it does not hold",
                )

    def _lay(self, value: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
        return [lay(value, layout, self.mesh, rank, poisoned=True) for rank in range(self.mesh.size)]

    def _buffer(self, buffer: int) -> _Buffer:
        if buffer not in self._buffers:
            raise missing_buffer(buffer)
        return self._buffers[buffer]
