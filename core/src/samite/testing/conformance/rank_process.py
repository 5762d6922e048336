"""One rank of `Ranks`: `python -m samite.testing.conformance.rank_process DRIVER RANK ADDRESS DESCRIPTOR`."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any

import torch

from samite import plugins
from samite.hal.driver import Communicator, Group
from samite.testing.conformance.ranks import WORLD, receive, send


def serve(driver_name: str, rank: int, address: str, connection: Connection) -> None:
    """Calls the communicator as told until the other end closes; what it raises is sent back."""
    communicator = plugins.driver(driver_name).communicator(Group(WORLD, rank, address))
    send(connection, None)
    while True:
        try:
            verb, arguments = receive(connection)
        except (EOFError, ConnectionResetError):
            break
        try:
            result = _started(communicator, *arguments) if verb == "start" else getattr(communicator, verb)(*arguments)
        except Exception as error:
            result = error
        send(connection, result)
    communicator.close()


def _started(communicator: Communicator, verb: str, x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """One of two that are under way at once, and are waited for in the other order."""
    first, second = (communicator.start(verb, x, *arguments) for _ in range(2))
    second.wait()
    return first.wait()


if __name__ == "__main__":
    name, rank, address, descriptor = sys.argv[1:]
    serve(name, int(rank), address, Connection(int(descriptor)))
