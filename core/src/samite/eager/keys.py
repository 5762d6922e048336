"""What plans are found by: a call's op, the specs of its tensors, and its literals.

Floats stand for any float of their kind (0 or not), since optimizers and schedules call the same op with another one
every time; a plan that depends on the number itself is found by a second key. So a rule may ask whether a number is 0,
and nothing else about it.
"""

from __future__ import annotations

from typing import Any

import torch

from samite.eager.spec import Spec
from samite.errors import InputError

__all__ = ["exact_key", "key_of", "note", "plain_key", "specs_of"]


class _Kind:
    """A word of a key."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


FLOAT, ZERO, PLAIN, LIST, END = (_Kind(name) for name in ("float", "zero", "plain", "list", "end"))


def key_of(kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The key of a call, as `Value.__torch_dispatch__` makes it."""
    parts: list[Any] = [id(func)]
    for value in args:
        note(parts, kind, value)
    for name, value in kwargs.items():
        parts.append(name)
        note(parts, kind, value)
    return tuple(parts)


def note(parts: list[Any], kind: type[Any], value: Any) -> None:
    """Append what a plan may know of an argument. `kind` is the class of distributed tensors. An int stands for itself:
    a bool, which equals one, follows its type."""
    what = type(value)
    if what is kind:
        parts.append(value._spec)
    elif what is int:
        parts.append(value)
    elif what is float:
        parts.append(FLOAT if value else ZERO)
    elif what is list or what is tuple:
        parts.append(LIST)
        for item in value:
            if type(item) is int:
                parts.append(item)
            else:
                note(parts, kind, item)
        parts.append(END)
    elif isinstance(value, torch.Tensor):
        parts += (PLAIN, *plain_key(value))
    else:
        parts += (what, value)


def plain_key(value: torch.Tensor) -> tuple[Any, ...]:
    """What a plan may know of a plain tensor. Raises InputError for one that is no dense tensor of torch."""
    kind: Any = type(value)
    if kind not in _PLAIN and kind.__torch_dispatch__ is not _NO_DISPATCH:
        raise InputError(
            f"a {type(value).__name__} beside a samite.Tensor",
            help="samite.Tensor.from_dtensor takes a DTensor; of others take the plain value first",
        )
    if value.layout is not torch.strided:
        raise InputError(f"a {value.layout} tensor beside a samite.Tensor", help="make it dense: x.to_dense()")
    return value.shape, value.dtype, value.stride()


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl


def exact_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The floats of a call, -0.0 apart from 0.0, nan equal to itself."""
    found: list[str] = []
    for value in (*args, *kwargs.values()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, float):
                found.append(repr(item))
    return " ".join(found)


def specs_of(kind: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Spec]:
    """The specs of the distributed tensors of a call."""
    found: list[Spec] = []
    for value in (*args, *kwargs.values()):
        items = value if isinstance(value, (list, tuple)) else (value,)
        found += [item._spec for item in items if type(item) is kind]
    return found
