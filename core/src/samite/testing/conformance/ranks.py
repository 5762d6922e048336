"""Two processes with a communicator each, which do what a test sends them."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed

from samite.mesh import Mesh

__all__ = ["WORLD", "Ranks", "receive", "send"]

WORLD = Mesh(("x", "one"), (2, 1))
PROCESS = "samite.testing.conformance.rank_process"
TIMEOUT = 60.0  # seconds: starting the processes, and each collective


class Ranks:
    """The processes of `WORLD` on one backend. Close it: nothing else ends them, save the end of this process."""

    def __init__(self, driver_name: str) -> None:
        # Held here: as with an engine, the store outlives every rank.
        self._store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        address = f"127.0.0.1:{self._store.port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        for rank in range(WORLD.size):
            here, there = socket.socketpair()
            command = [sys.executable, "-m", PROCESS, driver_name, str(rank), address, str(there.fileno())]
            # What the tests can import, the ranks can: the path may hold packages under test.
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
            self._processes.append(subprocess.Popen(command, pass_fds=[there.fileno()], env=environment))
            there.close()
            self._connections.append(Connection(here.detach()))
        self._answers()

    def call(self, verb: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`communicator.verb(*calls[rank])` on every rank at once; results by rank. Raises what a rank raised."""
        for connection, arguments in zip(self._connections, calls, strict=True):
            send(connection, (verb, arguments))
        return self._answers()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _answers(self) -> list[Any]:
        # All of them, before any is raised: what is left in a pipe would answer the next call.
        answers = [self._receive(rank) for rank in range(WORLD.size)]
        for rank, answer in enumerate(answers):
            if isinstance(answer, Exception):
                answer.add_note(f"on rank {rank}")
                raise answer
        return answers

    def _receive(self, rank: int) -> Any:
        connection = self._connections[rank]
        if not connection.poll(TIMEOUT):
            self.close()
            raise TimeoutError(f"rank {rank} gave no answer in {TIMEOUT:.0f} s")
        try:
            return receive(connection)
        except (EOFError, ConnectionResetError):
            self.close()
            raise ChildProcessError(f"rank {rank} ended; its standard error tells why") from None


def send(connection: Connection, value: Any) -> None:
    """By value: `Connection.send` would put tensors in shared memory that only relatives can open."""
    connection.send_bytes(pickle.dumps(value))


def receive(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())
