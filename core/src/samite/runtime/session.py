"""One mesh at work: its workers, started on first use, and the numbers of the buffers that live on them."""

from __future__ import annotations

import atexit
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from samite.errors import MeshError, WorkerError
from samite.hal.engine import Future, Workers
from samite.hal.program import Program
from samite.layout import Layout
from samite.mesh import Mesh
from samite.plugins import engine

__all__ = ["Session", "session_of"]

_sessions: dict[Mesh, Session] = {}


def session_of(mesh: Mesh) -> Session:
    """The session of a mesh; equal meshes share one, and with it their workers."""
    found = _sessions.get(mesh)
    if found is None:
        found = _sessions[mesh] = Session(mesh)
    return found


class Session:
    """`generation` counts restarts: after a worker died the next use starts new ones, which hold no buffers."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.generation = 0
        self._numbers = itertools.count()
        self._discarded: deque[int] = deque()
        self._workers: Workers | None = None

    @property
    def workers(self) -> Workers:
        if self._workers is None:
            made = engine(self.mesh.engine)
            if self.mesh.size > made.max_ranks:
                raise MeshError(
                    f"a mesh of {self.mesh.size} ranks ({self.mesh}), the {self.mesh.engine} engine runs "
                    f"{made.max_ranks} at most",
                    help="make an axis smaller, or raise max_workers in the configuration",
                )
            self._workers = made.start(self.mesh, dict(self.mesh.options))
            self.generation += 1
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
        return self.workers.load(program, options)

    def write(self, number: int, value: torch.Tensor, layout: Layout) -> None:
        with _Restarting(self):
            self.workers.write(number, value, layout)

    def read(self, number: int) -> torch.Tensor:
        with _Restarting(self):
            return self.workers.read(number)

    def run(self, program: int, arguments: Sequence[int | torch.Tensor], results: Sequence[int]) -> Future:
        with _Restarting(self):
            if self._discarded:
                gone = [self._discarded.popleft() for _ in range(len(self._discarded))]
                self.workers.free(gone)
            return self.workers.run(program, arguments, results)

    def close(self) -> None:
        """End the workers. The session can be used again: it starts new ones."""
        workers, self._workers = self._workers, None
        self._discarded.clear()
        if workers is not None:
            workers.close()


class _Restarting:
    """When a step fails on a worker its engine ends them all; the session forgets them, so that the next use starts
    anew."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, WorkerError):
            self.session.close()


@atexit.register
def _close_all() -> None:
    for session in list(_sessions.values()):
        session.close()
