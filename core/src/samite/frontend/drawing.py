"""Random numbers and clocks of Python's, which a trace would ask once for all calls."""

from __future__ import annotations

import datetime
import os
import random
import sys
import time
import uuid
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

__all__ = ["Draws", "clock"]

_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodType)
_CLOCKS: dict[Any, str] = {
    getattr(time, name): f"time.{name}()"
    for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")
} | {os.urandom: "os.urandom()", uuid.uuid1: "uuid.uuid1()", uuid.uuid4: "uuid.uuid4()"}


def clock(value: Any) -> str:
    """How a function is called that gives another value at each call, a clock mostly; else ""."""
    if not isinstance(value, _FUNCTIONS):
        return ""
    owner = getattr(value, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, datetime.date):
        return f"{owner.__name__}.{value.__name__}()" if value.__name__ in ("now", "today", "utcnow") else ""
    return _CLOCKS.get(value, "")


class Draws:
    """Generators of `random` and numpy that code has at hand, and their states before it drew from them."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[_Access, Any, str, str]] = {}

    def see(self, value: Any, name: str, line: str) -> None:
        """Code looks at `value`, which it writes as `name`: a generator perhaps, or a function that draws from one."""
        called = isinstance(value, _FUNCTIONS)
        generator = getattr(value, "__self__", None) if called else value
        if id(generator) not in self._seen and (access := _access(generator)) is not None:
            self._seen[id(generator)] = access, access[0](), f"{name}()" if called else name, line

    def end(self) -> tuple[str, str] | None:
        """Give all generators their states back; name and line of a number that was drawn."""
        drawn: tuple[str, str] | None = None
        for (read, write), state, name, line in self._seen.values():
            if repr(read()) != repr(state):
                write(state)
                drawn = drawn or (name, line)
        return drawn


_Access = tuple[Callable[[], Any], Callable[[Any], None]]


def _access(generator: Any) -> _Access | None:
    """How the state of a generator is read and set; None if it is none, or has no state."""
    if isinstance(generator, random.Random):
        system = isinstance(generator, random.SystemRandom)
        return None if system else (generator.getstate, generator.setstate)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(generator, numpy.RandomState):
        return generator.get_state, generator.set_state
    if numpy is not None and isinstance(generator, numpy.Generator):
        bits = generator.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None
