"""Sides of a comparison: processes that stay alive and are told when to run, so that rounds of all sides interleave.

A drift of the machine (its clock, its neighbours) then falls on all of them alike. While one side runs, the others wait
in a read.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.workload import Workload

__all__ = ["Absent", "Build", "Peers", "Place", "Round", "Side", "Step", "timed"]

Step = Callable[[], float | None]
"""One training step; gives its loss, and so ends when that is known, or None in a process that does not learn it."""


@dataclass(frozen=True)
class Place:
    """Where a process of a side stands: `rank` of `ranks`, which meet at the URL `rendezvous`."""

    rank: int
    ranks: int
    rendezvous: str


Build = Callable[[Workload, Place], Step]


@dataclass(frozen=True)
class Side:
    """`build`, a function of a module, makes the step in each of `ranks` processes of `threads` threads.

    An error of a type in `absent_if` makes the side absent, with the error as the reason; any other ends the run.
    """

    name: str
    build: Build
    ranks: int = 1
    threads: int = 1
    absent_if: tuple[type[Exception], ...] = ()


@dataclass(frozen=True)
class Round:
    """By step: the milliseconds of its slowest rank, and the mean of the losses of those ranks that have one."""

    milliseconds: list[float]
    losses: list[float]


class Absent(Exception):
    """A side that may be absent does not work here; the text says why."""


class Peers:
    """The running processes of one side. Raises Absent, or RuntimeError with a process's traceback; close it then as
    well."""

    def __init__(self, side: Side, workload: Workload) -> None:
        self.side = side
        self._directory = tempfile.TemporaryDirectory()
        self._processes: dict[Connection, Any] = {}
        # Each process is a new interpreter: none of torch's thread pools survives a fork.
        context = multiprocessing.get_context("spawn")
        rendezvous = (Path(self._directory.name) / "rendezvous").as_uri()
        for rank in range(side.ranks):
            ours, theirs = context.Pipe()
            place = Place(rank, side.ranks, rendezvous)
            process = context.Process(target=_serve, args=(side, workload, place, theirs), name=f"{side.name}, {rank}")
            process.start()
            theirs.close()
            self._processes[ours] = process

    @property
    def pids(self) -> list[int]:
        """Of the processes, by rank."""
        return [process.pid for process in self._processes.values()]

    def wait_built(self) -> None:
        self._answers()

    def run(self, steps: int) -> Round:
        """One round, on all ranks at once."""
        for end in self._processes:
            with suppress(BrokenPipeError):  # the process is gone, which its answer will say
                end.send(steps)
        ranks: list[Round] = self._answers()
        return Round(
            [max(step) for step in zip(*(r.milliseconds for r in ranks), strict=True)],
            [sum(step) / len(step) for step in zip(*(r.losses for r in ranks if r.losses), strict=True)],
        )

    def close(self) -> None:
        for end in self._processes:
            end.close()
        for process in self._processes.values():
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()
        self._directory.cleanup()

    def _answers(self) -> list[Any]:
        """What each rank answers, by rank; the first that fails is heard, though others may wait for it for ever."""
        found: dict[Any, Any] = {}
        while waiting := self._processes.keys() - found.keys():
            for end in wait(list(waiting)):
                found[end] = self._answer(end)
        return [found[end] for end in self._processes]

    def _answer(self, end: Any) -> Any:
        process = self._processes[end]
        try:
            verb, value = end.recv()
        except (EOFError, ConnectionResetError):
            process.join()
            raise RuntimeError(f"{process.name}: ended with exit code {process.exitcode}") from None
        if verb == "absent":
            raise Absent(value)
        if verb == "failed":
            raise RuntimeError(f"{process.name}: {value}")
        return value


def _serve(side: Side, workload: Workload, place: Place, end: Connection) -> None:
    """A process of a side: runs as many steps as it is told, until the other end is closed."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name need not resolve to an address that works
    import torch

    torch.set_num_threads(side.threads)
    try:
        step = side.build(workload, place)
        end.send(("built", None))
        while True:
            end.send(("ran", timed(step, end.recv())))
    except EOFError:
        return
    except side.absent_if as error:
        end.send(("absent", f"{type(error).__name__}: {str(error).splitlines()[0]}"))
    except Exception as error:
        end.send(("failed", "".join(traceback.format_exception(error))))


def timed(step: Step, steps: int) -> Round:
    """Runs steps one after the other."""
    milliseconds: list[float] = []
    losses: list[float] = []
    for _ in range(steps):
        started = time.perf_counter()
        loss = step()
        milliseconds.append(1e3 * (time.perf_counter() - started))
        losses += [] if loss is None else [loss]
    return Round(milliseconds, losses)
