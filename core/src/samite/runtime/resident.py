"""Workers of which this process is one: what an engine offers to those who compute on this rank's own buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from samite.hal.driver import Communicator
from samite.layout import Layout

__all__ = ["Resident"]


@runtime_checkable
class Resident(Protocol):
    """`communicator` is None if there is one rank."""

    rank: int
    communicator: Communicator | None

    def local(self, buffer: int) -> tuple[torch.Tensor, Layout]:
        """This rank's part of a buffer, contiguous, and how the whole lies. Between steps it may be written to. Of a
        pinned value that this rank does not hold it is an empty tensor, of shape (0,)."""
        ...

    def put(self, buffer: int, local: torch.Tensor, layout: Layout) -> None:
        """Make `local`, contiguous, this rank's part of a buffer, without a copy. Every rank does so; those that do
        not hold a pinned value put an empty tensor, of shape (0,)."""
        ...

    def agree(self, what: str, values: Sequence[tuple[str, int]] = ()) -> None:
        """Returns when all ranks say the same; raises CollectiveMismatch or InputError if one does not within seconds.
        `values` are names and digests of what must be equal."""
        ...
