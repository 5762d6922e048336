"""One mesh at work: its workers, started on first use, and the numbers of the buffers that live on them."""

from __future__ import annotations

import atexit
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from samite.errors import MeshError, OutOfMemory, WorkerError
from samite.hal.engine import Future, Workers
from samite.hal.program import Program
from samite.layout import Layout
from samite.mesh import Mesh
from samite.plugins import engine

__all__ = ["Recorder", "Session", "session_of"]


_LARGER = {"local": ", or raise max_workers in the configuration", "inprocess": ', or take engine="local"'}
"""What else helps where a mesh is too large for an engine."""


class Recorder(Protocol):
    """Who records ops of a session, to send several as one program."""

    def flush(self) -> None:
        """Send what is recorded."""
        ...

    def reads(self, number: int) -> bool:
        """Whether what is recorded reads a buffer."""
        ...

    def forget(self) -> None:
        """Give up what is recorded: the workers that it was for are gone."""
        ...

    def relay(self, remote: Any, layout: Layout) -> None:
        """Lay a `samite.eager.remote.Remote` that is on the workers out in another way."""
        ...


_sessions: dict[Mesh, Session] = {}


def session_of(mesh: Mesh) -> Session:
    """The session of a mesh; equal meshes share one, and with it their workers."""
    found = _sessions.get(mesh)
    if found is None:
        found = _sessions[mesh] = Session(mesh)
    return found


class Session:
    """`generation` counts how often workers were started from nothing: buffers of another generation are gone."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.generation = 0
        self.recorder: Recorder | None = None
        self._numbers = itertools.count()
        self._discarded: deque[int] = deque()
        self._workers: Workers | None = None
        self._failed = False

    def start(self) -> Workers:
        """The workers, at work: started if there are none, restarted if they have failed."""
        if self._workers is None:
            made = engine(self.mesh.engine)
            if self.mesh.size > made.max_ranks:
                raise MeshError(
                    f"a mesh of {self.mesh.size} ranks ({self.mesh}), the {self.mesh.engine} engine runs "
                    f"{made.max_ranks} at most",
                    help="make an axis smaller" + _LARGER.get(self.mesh.engine, ""),
                )
            self._workers = made.start(self.mesh, dict(self.mesh.options))
            self.generation += 1
        if self._failed:
            self._workers.restart()
            self._failed = False
        return self._workers

    @property
    def idle(self) -> bool:
        """Whether no workers run, so that no buffer is held."""
        return self._workers is None

    def number(self) -> int:
        """A buffer number that nobody uses."""
        return next(self._numbers)

    def discard(self, number: int) -> None:
        """Let a buffer go at the next opportunity. Safe from finalizers: it only takes note."""
        self._discarded.append(number)

    def load(self, program: Program, options: Mapping[str, Any]) -> int:
        with self._noting_failure():
            return self.start().load(program, options)

    def flush(self) -> None:
        """Send what is recorded, so that what comes next comes after it."""
        if self.recorder is not None:
            self.recorder.flush()

    def write(self, number: int, value: torch.Tensor, layout: Layout) -> None:
        if self.recorder is not None and self.recorder.reads(number):
            self.recorder.flush()
        self.start().write(number, value, layout)

    def read(self, number: int) -> torch.Tensor:
        """The value of a buffer; after a failure, as the last complete step left it."""
        assert self._workers is not None, "a buffer is read while its workers are there"
        with self._noting_failure():
            return self._workers.read(number)

    def run(self, program: int, arguments: Sequence[int | torch.Tensor], results: Sequence[int]) -> Future:
        self.flush()
        with self._noting_failure():
            workers = self.start()
            if self._discarded:
                workers.free([self._discarded.popleft() for _ in range(len(self._discarded))])
            return workers.run(program, arguments, results)

    def wait(self, future: Future) -> None:
        """Until a step is over. Raises what ended it."""
        with self._noting_failure():
            future.result()

    def close(self) -> None:
        """End the workers. The session can be used again: it starts new ones, which hold nothing."""
        workers, self._workers = self._workers, None
        self._failed = False
        self._discarded.clear()
        if self.recorder is not None:
            self.recorder.forget()
        if workers is not None:
            workers.close()

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except (WorkerError, OutOfMemory):  # the engine knows whether its workers live, and restarts them only if not
            self._failed = True
            raise


@atexit.register
def _close_all() -> None:
    for session in list(_sessions.values()):
        session.close()
