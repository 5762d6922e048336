"""Where ops come from: the user's line, the phase of the step and the number of the forward op.

A `Recorder` is told of every node while the first trace runs, and at the end writes `node.meta["custom"]`:

    {"line": "train.py:41", "phase": "forward" | "backward" | "update", "op": 17}

`op` counts the forward's ops from 0; a backward op has the number of the forward op that it belongs to, and its line.
Ops of the update (the optimizer's step, and whatever follows the last backward) have -1.
"""

from __future__ import annotations

import itertools
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any, Literal
from unittest import mock

import torch
from torch._C._autograd import _get_sequence_nr  # type: ignore[attr-defined]
from torch.fx import Node
from torch.types import py_sym_types

from samite.errors import CaptureError

__all__ = [
    "Labels", "Phase", "Recorder", "all_user_frames", "is_library", "is_torchs", "label_of", "line_of",
    "line_of_traceback", "user_frame", "user_line",
]  # fmt: skip

Phase = Literal["forward", "backward", "update"]

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_SAMITE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_SITE = os.path.join(_STDLIB, "site-packages") + os.sep
_ACCUMULATE_GRAD = 2**64 - 1
"""The sequence number that autograd gives to nodes that accumulate into `.grad`."""


def label_of(filename: str) -> str:
    """How a user's file is written in messages; empty for files that are not the user's."""
    if filename.startswith(("<", _TORCH, _SAMITE)):
        return ""
    if filename.startswith(_STDLIB) and not filename.startswith(_SITE):
        return ""
    path, here = os.path.abspath(filename), os.path.join(os.getcwd(), "")
    return path[len(here) :] if path.startswith(here) else os.path.basename(path)


def is_library(filename: str) -> bool:
    """Whether a user's file is one that was installed, and not written for this program."""
    return f"{os.sep}site-packages{os.sep}" in filename or f"{os.sep}dist-packages{os.sep}" in filename


def is_torchs(filename: str) -> bool:
    """Whether a file is of a library that torch itself calls while it traces."""
    _, _, path = filename.rpartition("site-packages" + os.sep)
    return path.split(os.sep)[0] in ("mpmath", "networkx", "numpy", "sympy")


class Labels(dict[CodeType, str]):
    """How messages write the file of a piece of code, looked up once."""

    def __missing__(self, code: CodeType) -> str:
        label = self[code] = label_of(code.co_filename)
        return label


def user_frame(frame: FrameType | None, labels: dict[CodeType, str]) -> FrameType | None:
    """The innermost frame, from `frame` outwards, that runs the user's code."""
    while frame is not None and not labels[frame.f_code]:
        frame = frame.f_back
    return frame


def line_of(node: Node) -> str:
    """The user's line of a node of a captured graph, or ""."""
    return node.meta.get("custom", {}).get("line", "")


def user_line(labels: Labels | None = None) -> str:
    """The line of the user's code that is running, "train.py:41"; empty if there is none. Who asks often keeps
    `labels`."""
    labels = Labels() if labels is None else labels
    frame = user_frame(sys._getframe(1), labels)
    return f"{labels[frame.f_code]}:{frame.f_lineno}" if frame is not None else ""


def all_user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the user's code, from `frame` outwards."""
    labels = Labels()
    while (frame := user_frame(frame, labels)) is not None:
        yield frame
        frame = frame.f_back


def line_of_traceback(traceback: TracebackType | None) -> str:
    """The innermost line of the user's code in `traceback`."""
    labels, line = Labels(), ""
    while traceback is not None:
        label = labels[traceback.tb_frame.f_code]
        line = f"{label}:{traceback.tb_lineno}" if label else line
        traceback = traceback.tb_next
    return line


@dataclass(slots=True)
class _Mark:
    """What is known of a node when it is made. `sequence` is autograd's counter, or the backward node's number."""

    node: Node
    line: str
    sequence: int
    kind: Literal["plain", "update", "backward", "recompute"]


_recording: ContextVar[Recorder | None] = ContextVar("samite_recorder", default=None)


class Recorder:
    """Collects marks during `recording()`; `updating` is true while an optimizer steps."""

    def __init__(self) -> None:
        self.updating = False
        self.stage_marks: list[int] = []
        """Numbers of the forward ops before which a stage of a pipeline begins; until `finish` those of marks."""
        self._marks: list[_Mark] = []
        self._labels = Labels()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Mark each call that a trace adds to its graph."""
        from torch.fx.experimental.proxy_tensor import PythonKeyTracer

        create = PythonKeyTracer.create_node

        def create_node(tracer: PythonKeyTracer, *args: Any, **kwargs: Any) -> Node:
            node = create(tracer, *args, **kwargs)
            if node.op == "call_function":
                self._mark(node)
            return node

        token = _recording.set(self)
        try:
            with mock.patch.object(PythonKeyTracer, "create_node", create_node):
                yield
        finally:
            _recording.reset(token)

    @staticmethod
    def current() -> Recorder | None:
        """The one that is recording."""
        return _recording.get()

    def _mark(self, node: Node) -> None:
        frame = user_frame(sys._getframe(2), self._labels)
        line = f"{self._labels[frame.f_code]}:{frame.f_lineno}" if frame is not None else ""
        current: Any = torch._C._current_autograd_node()  # the stubs leave out that there may be none
        if current is None:
            kind = "update" if self.updating else "plain"
            self._marks.append(_Mark(node, line, _get_sequence_nr(), kind))
            return
        # Formulas of autograd run without gradients; a checkpoint's forward that runs again does so with them.
        again = torch.is_grad_enabled() and not _calls_backward(frame)
        self._marks.append(_Mark(node, line, current._sequence_nr(), "recompute" if again else "backward"))

    def begin_stage(self) -> None:
        """The forward op that comes next is the first of a stage. Raises CaptureError inside of control flow."""
        from torch.fx.experimental.proxy_tensor import get_proxy_mode

        current: Any = torch._C._current_autograd_node()
        if current is not None:
            return  # a checkpoint that runs again says what it said before
        if get_proxy_mode() is None:  # as while a function of control flow is looked at
            raise CaptureError(
                "a stage cannot begin inside of a cond, a loop or a scan, which is one op",
                where=user_line(self._labels),
                help="call samite.stage() before it, or behind it",
            )
        self.stage_marks.append(len(self._marks))

    def finish(self) -> None:
        """Write `meta["custom"]` of every node that was marked."""
        before = [sum(_is_op(m.node) and m.kind == "plain" for m in self._marks[:at]) for at in self.stage_marks]
        self.stage_marks = before
        marks = [m for m in self._marks if _is_op(m.node)]
        last = max((i for i, m in enumerate(marks) if m.kind in ("backward", "recompute")), default=len(marks))
        forward = [m for m in marks[:last] if m.kind == "plain"]
        numbers = {id(m): i for i, m in enumerate(forward)}
        # Autograd numbers a node before its forward op runs: the first op that sees the counter at k + 1 made node k.
        maker: dict[int, int] = {}
        for i, m in enumerate(forward):
            maker.setdefault(m.sequence - 1, i)
        repeated = _match_recomputed(marks, forward, maker)
        for i, m in enumerate(marks):
            phase: Phase = "backward"
            op, line = -1, m.line
            if m.kind == "update" or (m.kind == "plain" and i > last):
                phase = "update"
            elif m.kind == "plain":
                phase, op = "forward", numbers[id(m)]
            elif m.kind == "recompute":
                op = repeated[id(m)]
            elif m.sequence != _ACCUMULATE_GRAD:
                op = maker.get(m.sequence, -1)
                line = forward[op].line if op >= 0 else line
            m.node.meta["custom"] = {"line": line, "phase": phase, "op": op}


def _is_op(node: Node) -> bool:
    """Whether a node is an op of the user's: autograd detaches on its own, and sizes are computed for ops."""
    return node.target is not torch.ops.aten.detach.default and not isinstance(node.meta.get("val"), py_sym_types)


def _calls_backward(frame: FrameType | None) -> bool:
    """Whether the innermost user frame is the one that waits for `backward()`: then no user code is below it."""
    inner: FrameType | None = sys._getframe(2)
    while inner is not None and inner is not frame:
        if inner.f_code.co_name in ("_engine_run_backward", "backward", "grad"):
            return True
        inner = inner.f_back
    return False


def _match_recomputed(marks: list[_Mark], forward: list[_Mark], maker: dict[int, int]) -> dict[int, int]:
    """The forward op that each recomputed op repeats, by the id of its mark.

    A checkpointed region runs again in its own order, so a run of recomputed ops is a stretch of the forward: the last
    such stretch that starts no later than the op whose gradient asked for it. `marks` and `forward` hold no aliases.
    """
    signature = [(m.line, m.node.target) for m in forward]
    matched: dict[int, int] = {}
    for sequence, group in itertools.groupby(marks, lambda m: m.sequence if m.kind == "recompute" else None):
        if sequence is None:
            continue
        run, asked = list(group), maker.get(sequence, len(forward) - 1)
        wanted = [(m.line, m.node.target) for m in run]
        start = asked
        while start >= 0 and signature[start : start + len(wanted)] != wanted:
            start -= 1
        for i, m in enumerate(run):
            matched[id(m)] = start + i if start >= 0 else asked
    return matched
