"""Following the lines of the user's code as they run, and not those of torch: that would double the time of a trace."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType, MethodType
from typing import Any, ParamSpec, TypeVar
from unittest import mock

import torch

__all__ = ["aside", "lines_watched", "unwatched"]

P = ParamSpec("P")
R = TypeVar("R")
Line = Callable[[FrameType], None]
Enter = Callable[[FrameType], Line | None]

_paused: list[Any] = []
"""Trace functions that are off while torch works."""


@contextmanager
def lines_watched(enter: Enter) -> Iterator[None]:
    """`enter` is told of every function that begins, and gives what is to be told of its lines before they run, or
    None. A debugger that is written in Python goes on as well; other tracers rest."""
    outer = sys.gettrace()
    call = _tracer(enter, outer if isinstance(outer, (FunctionType, MethodType)) else None)
    autograd, functions = torch.autograd, torch.autograd.function.BackwardCFunction
    with (
        mock.patch.object(autograd, "_engine_run_backward", unwatched(autograd._engine_run_backward)),
        mock.patch.object(functions, "apply", _watched_again(functions.apply)),  # `backward` of the user's Functions
    ):
        sys.settrace(call)
        try:
            yield
        finally:
            if sys.gettrace() is call:  # else a debugger was started within
                sys.settrace(outer)


def aside(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that runs no code of the user's, or next to none."""
    tracer = sys.gettrace()
    if tracer is None:
        return function(*args, **kwargs)
    _paused.append(tracer)
    sys.settrace(None)
    try:
        return function(*args, **kwargs)
    finally:
        sys.settrace(_paused.pop())


def unwatched(function: Callable[P, R]) -> Callable[P, R]:
    """The function that calls `function` `aside`."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return aside(function, *args, **kwargs)

    return run


def _watched_again(function: Callable[P, R]) -> Callable[P, R]:
    """A function that comes to the user's code again, called by one that is not watched."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if sys.gettrace() is not None or not _paused:
            return function(*args, **kwargs)
        sys.settrace(_paused[-1])
        try:
            return function(*args, **kwargs)
        finally:
            sys.settrace(None)

    return run


def _tracer(enter: Enter, outer: Any) -> Callable[[FrameType, str, Any], Any]:
    def call(frame: FrameType, event: str, argument: Any) -> Any:
        line = enter(frame)
        beside = None if outer is None else outer(frame, event, argument)
        return beside if line is None else _local(line, beside)

    return call


def _local(line: Line, beside: Any) -> Callable[[FrameType, str, Any], Any]:
    def local(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal beside
        if event == "line":
            line(frame)
        if beside is not None:
            beside = beside(frame, event, argument)
        return local

    return local
