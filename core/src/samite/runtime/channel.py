"""Messages between the processes of one host: whole packets, with file descriptors beside them.

A packet socket keeps message borders, so neither an interrupt nor a kill can leave half a message behind; and a socket
pair has no name, so none can be left in the file system.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Sequence
from typing import Any

from samite.hal.shared import Segment

__all__ = ["Channel", "pair"]

PACKET = 64 * 1024  # bytes; well below what a socket buffers, so that a sender does not wait for its reader
MAX_FDS = 128
_HERE, _BESIDE = b"\0", b"\1"  # the first byte: the message follows, or fills the segment whose descriptor came along


def pair() -> tuple[Channel, Channel]:
    """Two connected ends."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(one), Channel(other)


class Channel:
    """One end. Messages are any picklable value but None; sending raises OSError when the other end is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def of(cls, fd: int) -> Channel:
        """The end that was inherited as descriptor `fd`."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """-1 once closed."""
        return self._socket.fileno()

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        packet = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        if len(packet) < PACKET:
            socket.send_fds(self._socket, [_HERE, packet], list(fds))
            return
        segment = Segment.create(len(packet))
        try:
            segment.reserve(0, len(packet))
            segment.memory[: len(packet)] = packet
            socket.send_fds(self._socket, [_BESIDE], [segment.fd, *fds])
        finally:
            segment.close()

    def receive(self, timeout: float | None = None) -> tuple[Any, list[int]]:
        """The next message and the descriptors that came with it, which are the caller's to close.

        Raises EOFError when the other end is gone, TimeoutError after `timeout` seconds.
        """
        self._socket.settimeout(timeout)
        try:
            packet, fds, _, _ = socket.recv_fds(self._socket, PACKET + 1, MAX_FDS)
        except (BlockingIOError, TimeoutError):
            raise TimeoutError("no message") from None
        except ConnectionResetError:
            packet, fds = b"", []
        finally:
            self._socket.settimeout(None)
        if not packet:
            raise EOFError("the other end of the channel is gone")
        if packet[:1] == _HERE:
            return pickle.loads(memoryview(packet)[1:]), fds
        segment = Segment(fds.pop(0))
        try:
            return pickle.loads(segment.memory), fds
        finally:
            segment.close()

    def close(self) -> None:
        self._socket.close()
