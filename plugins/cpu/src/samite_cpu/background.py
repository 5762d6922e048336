"""A thread beside the one that computes, on which collectives make progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from samite.hal.driver import InFlight

__all__ = ["Background"]


@dataclass(frozen=True)
class _Result(InFlight):
    future: Future[torch.Tensor]

    def wait(self) -> torch.Tensor:
        return self.future.result()


_Work = tuple[Callable[[], torch.Tensor], "Future[torch.Tensor]"]


class Background:
    """Runs what it is given one after the other, in order. torch's kernels and waits for peers leave the interpreter to
    the thread that computes.

    Not an executor of the standard library: those end only when their work has, and what waits for a peer that is gone
    would keep the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Future[torch.Tensor] | None = None

    @property
    def busy(self) -> bool:
        """Whether some of the work is not over."""
        return self._last is not None and not self._last.done()

    def start(self, work: Callable[[], torch.Tensor]) -> InFlight:
        """Its result, or what it raises, comes with `wait`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._last = Future()
        self._queue.put((work, self._last))
        return _Result(self._last)

    def close(self) -> None:
        """Ends the thread once its work is over."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread = None

    def _serve(self) -> None:
        with torch.no_grad():
            while (taken := self._queue.get()) is not None:
                work, future = taken
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
                del work, future, taken  # tensors die with the work, not with the next one
