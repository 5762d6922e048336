"""One rank of `Ranks`: `python -m samite.testing.conformance.rank_process DRIVER RANK ADDRESS DESCRIPTOR`."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from samite import plugins
from samite.hal.driver import Group
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
            result = getattr(communicator, verb)(*arguments)
        except Exception as error:
            result = error
        send(connection, result)
    communicator.close()


if __name__ == "__main__":
    name, rank, address, descriptor = sys.argv[1:]
    serve(name, int(rank), address, Connection(int(descriptor)))
