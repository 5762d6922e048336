"""One buffer on the workers of a session, and its replica on this host."""

from __future__ import annotations

import weakref

import torch

from samite.errors import WorkerDied
from samite.hal.engine import Future
from samite.layout import Layout
from samite.runtime.session import Session

__all__ = ["Remote"]


class Remote:
    """One value on the workers of a session, laid out by `layout`, and its replica on this host.

    At least one of the two is current. Reading brings the host's up to date; writing to it makes the workers' stale,
    and the next compiled call sends it there.
    """

    def __init__(self, session: Session, number: int, layout: Layout, dtype: torch.dtype) -> None:
        self.session, self.number, self.layout, self.dtype = session, number, layout, dtype
        self.generation = session.generation
        self._host: torch.Tensor | None = None
        self._host_current = False
        self._workers_current = True
        self._step: Future | None = None
        self._finalizer = weakref.finalize(self, session.discard, number)
        self._finalizer.atexit = False

    def made_by(self, step: Future) -> None:
        """This value exists once `step` is over; if the step fails, reading it raises what ended the step."""
        self._step = step

    def adopt(self, value: torch.Tensor) -> None:
        """Start from a value of this host, which is not on the workers yet."""
        self._host, self._host_current, self._workers_current = value, True, False

    @property
    def on_workers(self) -> bool:
        """Whether the workers hold the current value."""
        return self._workers_current and self.generation == self.session.generation

    def host(self, *, overwrite: bool = False) -> torch.Tensor:
        """The current value on this host; views of what this gave before see it too. With `overwrite` its old content
        does not matter, and is not fetched.

        Raises WorkerDied if the workers that held the value are gone.
        """
        if not self._host_current and not overwrite:
            self._refuse_lost()
            if self._step is not None:
                self.session.wait(self._step)
                self._step = None
            value = self.session.read(self.number)
            if self._host is None:
                self._host = value
            else:
                self._host.copy_(value)
            self._host_current = True
        if self._host is None:
            self._host = torch.empty(self.layout.shape, dtype=self.dtype)
        return self._host

    def _refuse_lost(self) -> None:
        if self.generation != self.session.generation or self.session.idle:
            raise WorkerDied(
                "this value was lost with the workers that held it: they were closed",
                help="load a checkpoint (model.load_state_dict, optimizer.load_state_dict) and go on",
            )

    def host_written(self) -> None:
        """The host's value is newer."""
        self._host_current, self._workers_current = True, False

    def workers_written(self, layout: Layout) -> None:
        """A program has made a new value on the workers."""
        self._host_current, self._workers_current = False, True
        self.layout, self.generation = layout, self.session.generation

    def send(self, layout: Layout) -> int:
        """The buffer's number, with the current value on the workers as `layout`."""
        if not self.on_workers or self.layout != layout:
            self.session.write(self.number, self.host(), layout)
            self.layout, self.generation, self._workers_current = layout, self.session.generation, True
        return self.number
