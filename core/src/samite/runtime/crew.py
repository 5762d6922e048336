"""One generation of local workers: forked, told what they are, listened to, and ended together.

A worker that dies or raises ends all of them, since its peers may wait for it in a collective for ever. What is left is
what the workers never owned: the segments that hold the state.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from samite.errors import CollectiveMismatch, SamiteError, WorkerDied, WorkerError
from samite.hal.program import Program
from samite.hal.shared import Segment
from samite.mesh import Mesh
from samite.plugins import driver
from samite.runtime.artifacts import WORTH_KEEPING, Artifacts, artifact_name
from samite.runtime.board import Board
from samite.runtime.channel import pair
from samite.runtime.messages import Assignment, Failure, Interface
from samite.runtime.nursery import nursery

__all__ = ["Crew"]

log = logging.getLogger("samite")

GRACE = 0.3  # seconds in which the failure that caused the one seen first may come in
EXCHANGE = 256 * 2**20  # bytes
PATIENCE = 0.25  # seconds without news after which the ranks' collectives are compared


class Crew:
    """The workers of a mesh; the steps that they are told of follow `step`. `ended` once they have.

    Raises WorkerError if one does not start in `timeout` seconds, and what it raised if it raised.
    """

    def __init__(
        self,
        mesh: Mesh,
        generation: int,
        step: int,
        *,
        threads: int,
        imports: Sequence[str],
        timeout: float,
        shared_memory: bool,
    ) -> None:
        self.mesh, self.ended, self._done = mesh, False, step
        self._artifacts = Artifacts.configured()
        self._nursery = nursery(mesh.backends)
        self._board_segment = Board.create(mesh.size)
        self._board = Board(self._board_segment, mesh.size)
        for row in self._board.rows:
            row.end(step)
        self._store, address = _store(mesh)
        # Address space for the ranks' communicator, which takes as much of the memory as it needs.
        self._exchange = Segment.create(EXCHANGE) if shared_memory and mesh.size > 1 else None
        ends = [pair() for _ in range(mesh.size)]
        self._channels = [ours for ours, _ in ends]
        self._pids: list[int] = []
        self._poll = select.poll()
        self._ranks = {channel.fileno(): rank for rank, channel in enumerate(self._channels)}
        for channel in self._channels:
            self._poll.register(channel, select.POLLIN)
        self._processes: dict[int, int] = {}  # rank by pidfd
        try:
            self._pids = self._nursery.fork([theirs for _, theirs in ends])
            self._watch()
            self._assign(address, generation, threads, imports)
            self.answers("started", timeout)
        except BaseException:
            self.end()
            raise

    def _watch(self) -> None:
        """Has the processes polled beside their channels: what an op forked holds the worker's end of its channel, and
        may live on."""
        for rank, pid in enumerate(self._pids):
            with contextlib.suppress(OSError):  # a kernel before 5.3, or gone with the zygote: the channel's end tells
                fd = os.pidfd_open(pid)
                self._processes[fd] = rank
                self._poll.register(fd, select.POLLIN)

    def _assign(self, address: str, generation: int, threads: int, imports: Sequence[str]) -> None:
        segments = [self._board_segment] if self._exchange is None else [self._board_segment, self._exchange]
        for rank in range(self.mesh.size):
            assignment = Assignment(
                self.mesh,
                rank,
                address,
                generation,
                threads,
                os.getcwd(),
                tuple(sys.path),
                tuple(imports),
                {"interface_address": "127.0.0.1"},
            )
            self.send(rank, ("start", assignment), [segment.fd for segment in segments])

    @property
    def done(self) -> int:
        """The last step that every rank has ended."""
        if not self.ended:
            self._done = self._board.done()
        return self._done

    def send(self, rank: int, message: tuple[Any, ...], fds: Sequence[int] = ()) -> None:
        try:
            self._channels[rank].send(message, fds)
        except OSError:
            self._raise({rank: None})

    def send_all(self, message: tuple[Any, ...], fds: Sequence[int] = ()) -> None:
        for rank in range(self.mesh.size):
            self.send(rank, message, fds)

    def load(self, number: int, interface: Interface, program: Program, options: Mapping[str, Any]) -> None:
        """One rank compiles; the others load its artifact, or compile too where the backend has none. What was compiled
        before is on disk."""
        given = program, dict(options)
        if self._load_kept(number, interface, *given):
            return
        started = time.monotonic()
        self.send(0, ("compile", number, *given))
        artifact = self.answers("compiled", ranks=[0])[0][2]
        if artifact is not None and time.monotonic() - started > WORTH_KEEPING:
            self._artifacts.put(self._name(*given), artifact)
        for rank in range(self.mesh.size):
            source = (None, {}, artifact) if rank == 0 or artifact is not None else (*given, None)
            self.send(rank, ("load", number, interface, *source))
        self.answers("loaded")

    def _load_kept(self, number: int, interface: Interface, program: Program, options: Mapping[str, Any]) -> bool:
        name = self._name(program, options)
        artifact = self._artifacts.get(name)
        if artifact is None:
            return False
        self.send_all(("load", number, interface, None, {}, artifact))
        try:
            self.answers("loaded")
        except SamiteError as error:
            self._artifacts.refuse(name, error)
            return False
        return True

    def _name(self, program: Program, options: Mapping[str, Any]) -> str:
        backend = self.mesh.backends[0]
        return artifact_name(program, backend, driver(backend), options)

    def answers(self, verb: str, timeout: float | None = None, ranks: Sequence[int] = ()) -> dict[int, Any]:
        """The answer of each of `ranks` (default: all), by rank. Raises what a worker raised, after all have answered;
        the workers go on. WorkerError after `timeout` seconds."""
        wanted = set(ranks or range(self.mesh.size))
        found: dict[int, Any] = {}
        until = None if timeout is None else time.monotonic() + timeout
        while wanted - found.keys():
            found |= {rank: message for rank, message in self._news() if message[0] in ("failed", verb)}
            if until is not None and time.monotonic() > until:
                late = sorted(wanted - found.keys())
                raise WorkerError(f"ranks {late} did not start in {timeout} s", rank=late[0], help="raise timeout_s")
        failures: list[Failure] = [message[1] for message in found.values() if message[0] == "failed"]
        if failures:
            raise failures[0].to_error()
        return found

    def listen(self) -> None:
        """Waits for news of steps. Ends all and raises if a step failed, a worker died, or ranks are found to wait for
        each other in different collectives."""
        for rank, message in self._news():
            if message[0] == "failed":
                self._raise({rank: message[1]})

    def check(self, step: int) -> None:
        """Ends all and raises CollectiveMismatch if ranks made different collectives up to the end of a step."""
        ends = [row.at_end(step) for row in self._board.rows]
        if any(end != ends[0] for end in ends):
            self._mismatch(self._board.disagreement(step) or (-1, f"(count, hash) by rank: {ends}"))

    def end(self) -> dict[int, int]:
        """Kills the workers, if they live; wait statuses by rank, where a worker had died its own."""
        if self.ended:
            return {}
        self._done, self.ended = self.done, True
        for channel in self._channels:
            channel.close()
        for fd in self._processes:
            os.close(fd)
        self._processes.clear()
        statuses = self._nursery.end(self._pids)
        self._board.rows.clear()  # and with the rows the mapping
        self._board_segment.close()
        if self._exchange is not None:
            self._exchange.close()
        self._store = None
        return {rank: statuses[pid] for rank, pid in enumerate(self._pids) if pid in statuses}

    def _news(self) -> list[tuple[int, tuple[Any, ...]]]:
        """What workers said, but of failures of steps; nothing after PATIENCE."""
        messages, failed = self._receive(PATIENCE)
        if failed:
            self._raise(failed)
        if not messages:
            self._check_progress()
        return messages

    def _receive(self, timeout: float) -> tuple[list[tuple[int, tuple[Any, ...]]], dict[int, Failure | None]]:
        """Messages, and failures of steps by rank: None where the worker is gone."""
        messages: list[tuple[int, tuple[Any, ...]]] = []
        failed: dict[int, Failure | None] = {}
        for fd, _ in self._poll.poll(timeout * 1000):
            if fd in self._processes:
                self._poll.unregister(fd)
                failed.setdefault(self._processes[fd], None)
                continue
            rank = self._ranks[fd]
            try:
                message, _ = self._channels[rank].receive()
            except EOFError:
                self._poll.unregister(fd)
                failed[rank] = None
                continue
            if message[0] == "failed" and message[1].step:
                failed[rank] = message[1]
            else:
                messages.append((rank, message))
        return messages, failed

    def _raise(self, failed: dict[int, Failure | None]) -> NoReturn:
        """Ends all and raises the failure that explains the others: when a rank dies, those that wait for it in a
        collective raise as well, and may be heard first."""
        until = time.monotonic() + GRACE
        while not _explains(failed) and (left := until - time.monotonic()) > 0:
            failed |= self._receive(left)[1]
        at_fault = [failure for failure in failed.values() if failure is not None and not failure.in_collective]
        if not at_fault and (found := self._board.disagreement(self.done + 1)):
            self._mismatch(found)  # gloo aborts a rank whose peer sends it another size
        gone = sorted(rank for rank, failure in failed.items() if failure is None)
        statuses = self.end()
        if gone:
            how = ", ".join(f"rank {rank} {_describe(statuses.get(rank))}" for rank in gone)
            raise WorkerDied(f"{how}; all workers of the mesh were ended", rank=gone[0])
        failures = [failure for failure in failed.values() if failure is not None]
        raise min(failures, key=lambda failure: (failure.in_collective, failure.rank)).to_error()

    def _check_progress(self) -> None:
        step = self.done + 1
        found = self._board.disagreement(step)
        if found is not None:
            time.sleep(0.01)  # what was read while it was being written would not be found again
            if self._board.disagreement(step) == found:
                self._mismatch(found)

    def _mismatch(self, found: tuple[int, str]) -> NoReturn:
        rank, how = found
        self.end()
        raise CollectiveMismatch(
            f"the ranks' collectives differ: {how}",
            rank=rank,
            help="every rank must take the same path through the program; look for an op that asks for its rank",
        )


def _store(mesh: Mesh) -> tuple[Any, str]:
    """Where the ranks of this generation meet, held here so that it outlives each of them."""
    if mesh.size == 1:
        return None, ""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return store, f"127.0.0.1:{store.port}"


def _explains(failed: Mapping[int, Failure | None]) -> bool:
    return any(failure is None or not failure.in_collective for failure in failed.values())


def _describe(status: int | None) -> str:
    if status is None:
        return "is gone"
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
