"""One buffer on the workers of a session, and its replica on this host."""

from __future__ import annotations

import logging
import weakref

import torch

from samite.errors import SamiteError, WorkerDied
from samite.hal.engine import Future
from samite.layout import Layout
from samite.runtime.session import Session

__all__ = ["Remote"]

log = logging.getLogger("samite")


class Remote:
    """One value on the workers of a session, laid out by `layout`, and its replica on this host.

    At least one of the two is current. Reading brings the host's up to date; writing to it makes the workers' stale,
    and whoever needs it there sends it. `version` counts the values that it has had. A value may be `pending`: an op
    that makes it is recorded, and runs when the session is flushed. It was `placed` by the user or by an op, unless a
    compiled function took it in the place of a plain tensor.
    """

    def __init__(self, session: Session, number: int, layout: Layout, dtype: torch.dtype) -> None:
        self.session, self.number, self.layout, self.dtype = session, number, layout, dtype
        self.generation = session.generation
        self.version = 0
        self.pending, self.placed = False, True
        self._host: torch.Tensor | None = None
        self._workers_current = True
        self._step: Future | None = None
        self._error: SamiteError | None = None
        self._finalizer = weakref.finalize(self, session.discard, number)
        self._finalizer.atexit = False

    def made_by(self, step: Future) -> None:
        """This value exists once `step` is over; if the step fails, reading it raises what ended the step."""
        self._step, self.pending = step, False

    def lost_by(self, error: SamiteError) -> None:
        """The op that was to make this value did not run; reading it raises `error`."""
        self._error, self.pending = error, False

    def adopt(self, value: torch.Tensor) -> None:
        """Take a value of this host, which is the remote's own from now on and not on the workers yet."""
        self._host, self._workers_current = value, False
        self.version += 1
        self.pending, self._step, self._error = False, None, None

    @property
    def on_workers(self) -> bool:
        """Whether the workers hold the current value, or will once the session is flushed."""
        return self._workers_current and self.generation == self.session.generation

    def host(self) -> torch.Tensor:
        """The current value on this host, not to be written to.

        Raises WorkerDied if the workers that held the value are gone, or what kept it from being made.
        """
        if self._host is None:
            if self.pending:
                self.session.flush()
            if self._error is not None:
                raise self._error
            if self.generation != self.session.generation or self.session.idle:
                raise WorkerDied(
                    "this value was lost with the workers that held it: they were closed",
                    help="load a checkpoint (model.load_state_dict, optimizer.load_state_dict) and go on",
                )
            if self._step is not None:
                self.session.wait(self._step)
                self._step = None
            self._host = self.session.read(self.number)
        return self._host

    def workers_written(self, layout: Layout) -> None:
        """A program has made a new value on the workers, or an op that will is recorded."""
        self.version += 1
        self.settled_as(layout)

    def settled_as(self, layout: Layout) -> None:
        """The workers hold the value, laid out so."""
        self._host, self._workers_current, self._error = None, True, None
        self.layout, self.generation = layout, self.session.generation

    def unpin(self) -> bool:
        """Have all ranks hold the value if only some do, since ops run on all; whether it was so."""
        pinned = bool(self.layout.at)
        if pinned:
            self.send(self.layout.unpinned())
        return pinned

    def send(self, layout: Layout) -> int:
        """The buffer's number, with the current value on the workers as `layout`.

        A value that only some ranks hold, or shall hold, moves by way of this host: programs run on all ranks.
        """
        if self.on_workers and self.layout == layout:
            return self.number
        pinned = self.layout.at or layout.at
        if self.on_workers and self.session.recorder is not None and not pinned:
            self.session.recorder.relay(self, layout)
        else:
            if self.on_workers and pinned:
                log.debug("a value laid out as %s is read and written as %s", self.layout, layout)
            self.session.write(self.number, self.host(), layout)
            self.layout, self.generation, self._workers_current = layout, self.session.generation, True
        return self.number
