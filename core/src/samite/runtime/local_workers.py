"""Worker processes of this machine as one address space of buffers.

Tensors lie in shared segments that this process owns; workers are told where. So a read or a write of a buffer sends no
message at all, a step sends one small one to each worker, and state outlives workers: after a failed step every buffer
is what the last complete step left, and `restart` goes on from there.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch

from samite.errors import InputError, SamiteError, WorkerDied
from samite.hal.program import Program
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.arena import Arena
from samite.runtime.buffers import Buffer, Buffers
from samite.runtime.crew import Crew
from samite.runtime.dispatch import Dispatch
from samite.runtime.sharding import assemble, fill, home_ranks

__all__ = ["LocalWorkers", "StepFuture"]

log = logging.getLogger("samite")

UNDER_WAY = 2  # steps; inputs have as many places


class StepFuture:
    """A step under way on local workers."""

    def __init__(self, workers: LocalWorkers, step: int) -> None:
        self._workers, self._step = workers, step

    def done(self) -> bool:
        return self._workers.ended(self._step)

    def result(self) -> None:
        self._workers.wait(self._step)


class LocalWorkers:
    """A mesh of worker processes. Thread-safe; of use only in the process that made it.

    What ends the workers (one died, a step raised, ranks disagreed) is raised by the call that meets it and by the
    futures of the steps that it took along; every later `run` or `load` raises WorkerDied until `restart`.
    """

    def __init__(
        self, mesh: Mesh, *, threads: int, timeout: float, imports: Sequence[str], shared_memory: bool
    ) -> None:
        self.mesh = mesh
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._settings: dict[str, Any] = {
            "threads": threads,
            "timeout": timeout,
            "imports": imports,
            "shared_memory": shared_memory,
        }
        self._arena = Arena(mesh.size)
        self._buffers = Buffers(self._arena)
        self._layouts: dict[Layout, Layout] = {}
        self._programs: list[tuple[Dispatch, Mapping[str, Any]]] = []
        self._announced = 0  # segments that the workers know
        self._submitted = self._committed = 0  # steps: all, and those that are over
        self._lost: dict[int, SamiteError] = {}  # what took a step along
        self._failure: SamiteError | None = None  # why there are no workers
        self._generation = 0
        self._crew = Crew(mesh, 0, 0, **self._settings)
        self._present = [self._crew]  # for whoever ends the workers without this object
        self._finalizer = weakref.finalize(self, _end, self._owner, self._present, self._arena)

    def load(self, program: Program, options: Mapping[str, Any]) -> int:
        with self._lock, self._crew_at_work() as crew:
            dispatch = Dispatch(len(self._programs), program, self._intern, UNDER_WAY)
            crew.load(dispatch.number, dispatch.interface, program, options)
            self._programs.append((dispatch, options))
            return dispatch.number

    def write(self, buffer: int, value: torch.Tensor, layout: Layout) -> None:
        with self._lock:
            self._check_usable()
            if value.device.type != "cpu":
                raise InputError(f"a tensor on {value.device}", help="engines take global tensors on the host: .cpu()")
            shape = layout.local_shape(self.mesh)
            ranks = home_ranks(layout, self.mesh)
            location = self._arena.allocate(prod(shape) * value.dtype.itemsize, ranks=ranks)
            try:
                for rank in range(self.mesh.size):
                    fill(self._arena.view(location, rank, value.dtype, shape), value.detach(), layout, self.mesh, rank)
            except BaseException:
                self._arena.release(location)
                raise
            self._buffers.put(buffer, Buffer(self._intern(layout), value.dtype, shape, location))

    def read(self, buffer: int) -> torch.Tensor:
        with self._lock:
            self._check_usable()
            held = self._buffers[buffer]
            self._wait(held.step)
            if held.layout.unpinned().is_replicated:
                return self._local(held, next(iter(held.current.ranks), 0)).clone()
            locals = [self._local(held, rank) for rank in range(self.mesh.size)]
            return assemble(locals, held.layout, self.mesh)

    def run(self, program: int, arguments: Sequence[int | torch.Tensor], results: Sequence[int]) -> StepFuture:
        with self._lock:
            self._check_usable()
            self._reach(self._submitted - UNDER_WAY + 1)
            self._check_at_work()
            step = self._submitted + 1
            call = self._programs[program][0].prepare(self._buffers, arguments, results, step)
            with self._crew_at_work() as crew:
                self._buffers.open(step, call.replaced, call.made)
                self._submitted = step
                for message in call.messages:
                    crew.send_all(message)
            return StepFuture(self, step)

    def free(self, buffers: Sequence[int]) -> None:
        with self._lock:
            self._buffers.free(buffers)

    def wait(self, step: int) -> None:
        """Until all ranks have ended a step. Raises what took it along."""
        with self._lock:
            self._wait(step)

    def ended(self, step: int) -> bool:
        """Whether a step is over, one way or the other."""
        with self._lock:
            if self._committed < step:
                self._commit()
            return self._committed >= step

    def restart(self) -> None:
        """New workers for those that ended, with all programs and buffers. Does nothing while workers live."""
        with self._lock:
            self._check_usable()
            if self._failure is None:
                return
            log.warning("%s: starting workers again, from the last complete step", self.mesh)
            self._generation += 1
            self._crew = Crew(self.mesh, self._generation, self._committed, **self._settings)
            self._present[:] = [self._crew]
            self._failure, self._announced = None, 0
            with self._crew_at_work() as crew:
                for dispatch, options in self._programs:
                    dispatch.forget()
                    crew.load(dispatch.number, dispatch.interface, dispatch.program, options)

    def close(self) -> None:
        """Ends the workers and gives all memory back."""
        with self._lock:
            self._finalizer()
            self._programs.clear()  # with their places in the segments

    def _check_usable(self) -> None:
        if os.getpid() != self._owner:
            raise WorkerDied(
                f"these workers belong to process {self._owner}, of which this one is a fork",
                help="read what the fork needs before it starts, or make a mesh there",
            )
        if not self._finalizer.alive:
            raise WorkerDied("the workers of this mesh were closed", help="make the mesh anew")

    def _check_at_work(self) -> None:
        self._check_usable()
        if self._failure is not None:
            raise WorkerDied(
                "the workers of this mesh have ended",
                help="state is as the last complete step left it; restart() goes on from there",
            ) from self._failure

    @contextmanager
    def _crew_at_work(self) -> Iterator[Crew]:
        """The crew, told of every segment, to send it something."""
        self._check_at_work()
        with self._noting_failure():
            try:
                segments = self._arena.segments
                for number in range(self._announced, len(segments)):
                    self._crew.send_all(("segment", number), [segments[number].fd])
                    self._announced = number + 1
                yield self._crew
            except BaseException as error:
                if not isinstance(error, Exception):
                    self._crew.end()  # an interrupt: some ranks may have been told of what others were not
                raise

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """If the crew does not survive what is done with it, the steps under way are lost."""
        try:
            yield
        except BaseException as error:
            if self._crew.ended and self._failure is None:
                known = (
                    error if isinstance(error, SamiteError) else WorkerDied(f"{type(error).__name__} ended the workers")
                )
                self._failure = known
                self._lost.update(dict.fromkeys(range(self._committed + 1, self._submitted + 1), known))
                self._committed = self._submitted
                self._buffers.roll_back()
            raise

    def _wait(self, step: int) -> None:
        self._reach(step)
        if step in self._lost:
            raise self._lost[step]

    def _reach(self, step: int) -> None:
        """Until a step is over; raises what ends the workers meanwhile."""
        while self._committed < step:
            if not self._commit():
                with self._noting_failure():
                    self._crew.listen()

    def _commit(self) -> bool:
        """Takes note of steps that all ranks have ended; whether there were any."""
        before = self._committed
        with self._noting_failure():
            for step in range(before + 1, self._crew.done + 1):
                self._crew.check(step)
                self._buffers.commit()
                self._committed = step
        return self._committed > before

    def _local(self, held: Buffer, rank: int) -> torch.Tensor:
        return self._arena.view(held.current, rank, held.dtype, held.shape)

    def _intern(self, layout: Layout) -> Layout:
        return self._layouts.setdefault(layout, layout)


def _end(owner: int, present: list[Crew], arena: Arena) -> None:
    if os.getpid() == owner:
        present[0].end()
        arena.close()
