"""Ops on values of workers, recorded in order and sent as programs.

A program of some dozen ops costs one message; results that nobody holds any more when it is sent are computed, if at
all, without being kept. Programs are found again by the structure of what was recorded, so the second round of a loop
compiles nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from samite.eager.remote import Remote
from samite.eager.segment import Entry, Recorded, segment_program
from samite.errors import SamiteError
from samite.frontend.source import Labels, user_line
from samite.ir.context import TensorType
from samite.ir.graph import Argument, Graph, Node, intern_op
from samite.layout import Layout
from samite.runtime.session import Session
from samite.runtime.sharding import dtype_name

__all__ = ["MOST", "Stream"]

MOST = 64
"""Calls that are recorded before they are sent."""


class _Current(NamedTuple):
    """The value of a remote at this place of the stream: its number, good for a version of the remote."""

    number: int
    version: int


class Stream:
    """What a session is to do next. Values that go in are numbered -1, -2, ..., those that calls give 0, 1, ...

    Thread-safe, as the workers are.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._lock = threading.RLock()
        self._programs: dict[Any, tuple[int, int, list[Recorded]]] = {}  # generation, handle, what keeps ids in use
        self._labels = Labels()
        self._clear()
        session.recorder = self

    def _clear(self) -> None:
        self._entries: list[Entry] = []
        self._given: list[Remote | torch.Tensor] = []  # what the entries are
        self._plain: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}  # (id, version) of a plain tensor
        self._calls: list[Recorded] = []
        self._count = 0  # of values that calls give
        self._current: WeakKeyDictionary[Remote, _Current] = WeakKeyDictionary()

    def record(
        self, graph: Graph, operands: Sequence[Remote | torch.Tensor], results: Sequence[tuple[Remote, Layout]]
    ) -> None:
        """A placed function; its returns become the values of `results`, which may be among the operands."""
        with self._lock:
            for x in operands:
                if isinstance(x, Remote) and not x.on_workers:
                    x.send(x.layout)
            numbers = tuple(self._number(x) for x in operands)
            self._calls.append(Recorded(graph, numbers, user_line(self._labels)))
            for remote, layout in results:
                remote.workers_written(layout)
                self._makes(remote)
            if len(self._calls) >= MOST:
                self.flush()

    def relay(self, remote: Remote, layout: Layout) -> None:
        with self._lock:
            if not remote.on_workers:
                remote.layout = layout  # it will be sent so
                return
            type = TensorType(remote.layout.shape, dtype_name(remote.dtype))
            number = self._number(remote)
            self._calls.append(Recorded(_reshard(type, remote.layout, layout), (number,), user_line(self._labels)))
            remote.settled_as(layout)
            self._makes(remote)

    def relaid(self, remote: Remote, layout: Layout) -> Remote:
        """A new buffer with the value of `remote`, which is on the workers."""
        made = Remote(self.session, self.session.number(), layout, remote.dtype)
        type = TensorType(remote.layout.shape, dtype_name(remote.dtype))
        self.record(_reshard(type, remote.layout, layout), [remote], [(made, layout)])
        return made

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        if not self._calls:
            return
        calls, entries, given, current = self._calls, self._entries, self._given, self._current
        kept = [
            (known.number, remote)
            for remote, known in current.items()
            if known.number >= 0 and remote.pending and known.version == remote.version
        ]
        kept.sort(key=lambda pair: pair[0])
        self._clear()
        if not kept:
            return
        try:
            handle = self._program(entries, calls, [(number, remote.layout) for number, remote in kept])
            arguments = [x.number if isinstance(x, Remote) else x for x in given]
            step = self.session.run(handle, arguments, [remote.number for _, remote in kept])
        except SamiteError as error:
            for _, remote in kept:
                remote.lost_by(error)
            raise
        for _, remote in kept:
            remote.made_by(step)

    def reads(self, number: int) -> bool:
        return any(isinstance(x, Remote) and x.number == number for x in self._given)

    def forget(self) -> None:
        for remote in self._current:
            remote.pending = False
        self._clear()

    def _makes(self, remote: Remote) -> None:
        remote.pending = True
        self._current[remote] = _Current(self._count, remote.version)
        self._count += 1

    def _number(self, x: Remote | torch.Tensor) -> int:
        if isinstance(x, Remote):
            known = self._current.get(x)
            if known is None or known.version != x.version:
                known = self._current[x] = _Current(self._enter(x, x.layout, x.dtype), x.version)
            return known.number
        key = id(x), -1 if x.is_inference() else x._version
        if key not in self._plain:
            # A copy, since the caller may write to its tensor; and the tensor, so that its id stays its own.
            layout = Layout.replicated(x.shape)
            self._plain[key] = self._enter(x.detach().clone(), layout, x.dtype), x
        return self._plain[key][0]

    def _enter(self, x: Remote | torch.Tensor, layout: Layout, dtype: torch.dtype) -> int:
        self._entries.append(Entry(TensorType(layout.shape, dtype_name(dtype)), layout))
        self._given.append(x)
        return -len(self._given)

    def _program(self, entries: list[Entry], calls: list[Recorded], kept: list[tuple[int, Layout]]) -> int:
        key = (
            tuple(entries),
            tuple((id(call.graph), call.operands, call.line) for call in calls),
            tuple(kept),
        )
        known = self._programs.get(key)
        self.session.start()
        if known is None or known[0] != self.session.generation:

            def place(number: int) -> int:
                return -number - 1 if number < 0 else len(entries) + number

            numbered = [call._replace(operands=tuple(map(place, call.operands))) for call in calls]
            results = [(place(number), layout) for number, layout in kept]
            program = segment_program(self.session.mesh, entries, numbered, results)
            handle = self.session.load(program, {"mode": "aten"})
            known = self._programs[key] = self.session.generation, handle, calls
        return known[1]


def _reshard(type: TensorType, have: Layout, want: Layout) -> Graph:
    attributes = (("dst", str(want)), ("src", str(have)))
    op = intern_op("dist.reshard", (), (type,), (type,), attributes)
    found = _reshards.get((type, have, want))
    if found is None:
        node = Node(op, (0,), (1,), None, (str(want),))
        found = Graph("reshard", (Argument(type, "x", str(have)),), [node], (1,), (-1,), [type, type])
        _reshards[type, have, want] = found
    return found


_reshards: dict[tuple[TensorType, Layout, Layout], Graph] = {}
"""One object for equal reshards, as programs are found by identity."""
