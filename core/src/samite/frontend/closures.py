"""The variables that a function reads besides its arguments."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any

from torch import nn

__all__ = ["variables"]


def variables(fn: Callable[..., Any]) -> dict[str, Any]:
    """The variables of enclosing functions and of the module that `fn`'s own code reads, those that are bound."""
    fn = inspect.unwrap(fn.forward if isinstance(fn, nn.Module) else fn)
    fn = getattr(fn, "__func__", fn)
    code: CodeType | None = getattr(fn, "__code__", None)
    if code is None:
        return {}
    found = {name: fn.__globals__[name] for name in _global_names(code) if name in fn.__globals__}
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # assigned later, or deleted
            continue
    return found


@functools.lru_cache(maxsize=256)
def _global_names(code: CodeType) -> tuple[str, ...]:
    loads = ("LOAD_GLOBAL", "LOAD_NAME")
    return tuple(sorted({i.argval for i in dis.get_instructions(code) if i.opname in loads}))
