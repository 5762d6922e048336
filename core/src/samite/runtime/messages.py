"""What the owner of local workers and a worker say to each other. All small: tensors are told by their place.

| the owner says                                | a worker answers                                             |
| ("start", Assignment), board and, if there    |                                                              |
|          is one, the communicator's segment   | ("started",)                                                 |
| ("segment", number), its descriptor           |                                                              |
| ("compile", program, Program, options)        | ("compiled", program, artifact), None if there is none       |
| ("load", program, Interface, ...              |                                                              |
|          Program, options, artifact)          | ("loaded", program)                                          |
| ("frame", program, frame, Frame)              |                                                              |
| ("run", program, frame, step, results)        | ("ended", step), once the step is noted on the board         |

`program`, `frame` and `step` are the owner's numbers; `results` are locations. What raises is answered by
("failed", Failure); a worker whose step failed takes no more messages.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from samite.errors import SamiteError, WorkerError
from samite.hal.program import Program
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.arena import Location
from samite.runtime.sharding import home_ranks

__all__ = ["Assignment", "Failure", "Frame", "Interface", "Local"]


@dataclass(frozen=True)
class Assignment:
    """What a worker is to be. `address` is where the ranks meet; `path` and `directory` are the owner's."""

    mesh: Mesh
    rank: int
    address: str
    generation: int
    threads: int
    directory: str
    path: tuple[str, ...]
    imports: tuple[str, ...] = ()
    communicator_options: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Local(NamedTuple):
    """A value on the `ranks` that hold it: all, if none are named."""

    dtype: str
    shape: tuple[int, ...]
    ranks: tuple[int, ...] = ()

    def on(self, rank: int) -> Local:
        """What a rank has of it: an empty tensor where it is not held."""
        return Local(self.dtype, self.shape if not self.ranks or rank in self.ranks else (0,))


@dataclass(frozen=True)
class Interface:
    """A `Program` to those who run it: arguments and results, which arguments are state, and which state argument each
    result replaces (-1: none)."""

    name: str
    arguments: tuple[Local, ...]
    results: tuple[Local, ...]
    state: tuple[bool, ...]
    alias: tuple[int, ...]

    @classmethod
    def of(cls, program: Program) -> Interface:
        def local(dtype: str, layout: Layout) -> Local:
            return Local(dtype, layout.local_shape(program.mesh), home_ranks(layout, program.mesh))

        return cls(
            program.name,
            tuple(local(argument.dtype, argument.layout) for argument in program.arguments),
            tuple(local(result.dtype, result.layout) for result in program.results),
            tuple(argument.kind == "state" for argument in program.arguments),
            tuple(result.alias for result in program.results),
        )

    def on(self, rank: int) -> Interface:
        """With the shapes of one rank."""
        arguments, results = (tuple(x.on(rank) for x in side) for side in (self.arguments, self.results))
        return replace(self, arguments=arguments, results=results)


class Frame(NamedTuple):
    """Where a step's arguments lie, and where the next value of each goes (None: it has none)."""

    arguments: tuple[Location, ...]
    following: tuple[Location | None, ...]


@dataclass(frozen=True)
class Failure:
    """What a worker raised. `step` is 0 outside of steps; `in_collective`: the peers are as likely to blame."""

    rank: int
    step: int
    error: SamiteError
    traceback: str
    in_collective: bool = False

    @classmethod
    def of(cls, error: Exception, rank: int, step: int = 0, in_collective: bool = False) -> Failure:
        trace = "".join(traceback.format_exception(error))
        known = (
            error
            if isinstance(error, SamiteError) and _travels(error)
            else WorkerError(f"{type(error).__name__}: {error}")
        )
        return cls(rank, step, known, trace, in_collective)

    def to_error(self) -> SamiteError:
        """The error as the owner raises it: with the rank, and with the worker's traceback."""
        if isinstance(self.error, WorkerError):
            self.error.rank, self.error.remote_traceback = self.rank, self.traceback
        else:
            self.error.add_note(f"on rank {self.rank}:\n{self.traceback}")
        return self.error


def _travels(error: SamiteError) -> bool:
    """Whether an error (a plugin's, perhaps, holding what it likes) survives being sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True
