"""Errors that torch's functions raise while they are traced, and the call that was to blame."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch.utils._pytree as pytree
from torch import Tensor

from samite.errors import InputError
from samite.frontend.source import user_line

__all__ = ["Blamed", "quiet", "told"]

_CALL = "_samite_call"
"""The attribute of an error that has the call."""


class _Call(NamedTuple):
    """A call of one of torch's functions: its name, the tensors that it was given, and the user's line."""

    name: str
    shapes: str
    line: str


class Blamed:
    """A call of one of torch's functions, which an error within is to name."""

    __slots__ = ("_args", "_func", "_kwargs")

    def __init__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception) and not hasattr(error, _CALL):
            name = getattr(self._func, "__name__", str(self._func))
            setattr(error, _CALL, _Call(name, _shapes(self._args, self._kwargs), user_line()))


def _shapes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The tensors among arguments, as "float32[4, 6], float32[3]"."""
    tensors = [x for x in pytree.tree_leaves((args, dict(kwargs))) if isinstance(x, Tensor)]
    return ", ".join(f"{str(x.dtype).removeprefix('torch.')}{[*x.shape]}" for x in tensors)


def told(error: Exception) -> InputError | None:
    """What a user is told of an error that a function of torch's raised; None for the user's own errors."""
    call: _Call | None = getattr(error, _CALL, None)
    if call is None:
        return None
    reason = str(error).strip().partition("\n")[0].rstrip(".").removeprefix(f"{call.name}: ")
    return InputError(
        f"{call.name}: {reason}", where=call.line, help=f"it was given {call.shapes}" if call.shapes else ""
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Within, torch does not print the shapes of an error beside raising it."""
    with mock.patch.object(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True):
        yield
