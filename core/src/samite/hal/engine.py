"""What an engine implements: where processes run, how programs and tensors reach them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from samite.hal.program import Program
from samite.layout import Layout
from samite.mesh import Mesh

__all__ = ["Engine", "Future", "Workers"]


class Future(Protocol):
    """A step under way. `result()` waits for all ranks; it raises what a worker raised."""

    def done(self) -> bool: ...
    def result(self) -> None: ...


@runtime_checkable
class Workers(Protocol):
    """The running ranks of one mesh, as one address space of buffers that the caller numbers.

    A value whose layout is pinned lies on the ranks of its home alone. The others take no memory for it: what they have
    in its place, and what their programs take and give, is an empty tensor of its dtype, of shape (0,).
    """

    mesh: Mesh

    def load(self, program: Program, options: Mapping[str, Any]) -> int:
        """Send a program once; gives its handle."""
        ...

    def write(self, buffer: int, value: torch.Tensor, layout: Layout) -> None:
        """Lay a global value out over the ranks as `buffer`."""
        ...

    def read(self, buffer: int) -> torch.Tensor:
        """The current global value of `buffer`, after every step before it."""
        ...

    def run(self, program: int, arguments: Sequence[int | torch.Tensor], results: Sequence[int]) -> Future:
        """One step. An argument is a buffer's number or a global tensor; every result goes to the buffer numbered so
        (an aliased one keeps its state argument's number). At most two steps are under way; a third call waits."""
        ...

    def free(self, buffers: Sequence[int]) -> None: ...

    def restart(self) -> None:
        """After a failure: workers that can go on, with all programs, and with buffers as the last complete step left
        them. Raises WorkerDied if that state is lost. Does nothing while the workers live."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Engine(Protocol):
    max_ranks: int

    def start(self, mesh: Mesh, options: Mapping[str, Any]) -> Workers: ...
