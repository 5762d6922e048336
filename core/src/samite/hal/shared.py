"""Memory that processes of one host share: anonymous files, passed as descriptors, never named.

What has no name cannot be left behind: the kernel frees a segment when the last process that holds it is gone.
"""

from __future__ import annotations

import mmap
import os

import torch

from samite.errors import OutOfMemory

__all__ = ["Segment"]


class Segment:
    """One shared memory file, mapped. `memory` is all of it, `bytes` the same as a 1-d uint8 tensor. Either keeps the
    mapping alive, so a segment may be closed while what was made from it is in use."""

    def __init__(self, fd: int) -> None:
        """Maps the file `fd`, which the segment owns from here on."""
        self.fd = fd
        self.nbytes = os.fstat(fd).st_size
        self.memory = memoryview(mmap.mmap(fd, self.nbytes))
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)

    @classmethod
    def create(cls, nbytes: int, name: str = "samite") -> Segment:
        """A new segment of zeros, of at least one byte. Memory is taken when it is `reserve`d or first touched.

        Raises OutOfMemory if the file or its mapping cannot be made.
        """
        fd = -1
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC)
            os.ftruncate(fd, max(nbytes, 1))
            return cls(fd)
        except (OSError, ValueError, OverflowError) as error:
            if fd >= 0:
                os.close(fd)
            raise _full(nbytes, error) from error

    def reserve(self, offset: int, nbytes: int) -> None:
        """Takes the memory of a range now, so that writing to it later cannot fail. Raises OutOfMemory, also where the
        range goes beyond the segment."""
        if offset + nbytes > self.nbytes:
            raise _full(nbytes, IndexError(f"{offset} + {nbytes} is beyond a segment of {self.nbytes}"))
        try:
            os.posix_fallocate(self.fd, offset, max(nbytes, 1))
        except OSError as error:
            raise _full(nbytes, error) from error

    def close(self) -> None:
        """Gives the descriptor back; the mapping goes with the last tensor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.memory, self.bytes = memoryview(b""), torch.empty(0, dtype=torch.uint8)


def _full(nbytes: int, error: Exception) -> OutOfMemory:
    return OutOfMemory(
        f"no shared memory for {nbytes:,} bytes: {error}",
        help="free memory, or raise the limits of files (ulimit -f, ulimit -n) or of the container",
    )
