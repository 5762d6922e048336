"""The arguments that torch's random functions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from samite.errors import CaptureError
from samite.frontend.source import user_line

__all__ = ["INTEGERS", "Handler", "bind", "finish", "refuse", "size_of"]

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""What stands in for a function of torch: it is given the function and its arguments."""

INTEGERS = (int, torch.SymInt)
_DIGITS = {torch.bfloat16: 2.0**8, torch.float16: 2.0**11}
"""Numbers of [0, 1) that are evenly spaced in the short floating types."""


def bind(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], **defaults: Any) -> tuple[Any, ...]:
    given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
    return tuple(given[name] for name in names)


def size_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[int]:
    if "size" in kwargs:
        return kwargs["size"]
    return args[0] if len(args) == 1 and not isinstance(args[0], INTEGERS) else args


def finish(drawn: Tensor, kwargs: dict[str, Any], uniform: bool = False) -> Tensor:
    """The keyword arguments that torch's factories share."""
    if kwargs.get("generator") is not None:
        raise CaptureError(
            "a random op with its own generator cannot be captured",
            where=user_line(),
            help="leave `generator` out: a captured step draws counter-based numbers from a seed of its own",
        )
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if dtype in _DIGITS and drawn.dtype == torch.float32 and uniform:
        drawn = (drawn * _DIGITS[dtype]).floor() / _DIGITS[dtype]  # rounding to nearest would reach 1
    drawn = drawn.to(dtype)
    return drawn.requires_grad_() if kwargs.get("requires_grad") else drawn


def refuse(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    name = getattr(func, "__name__", str(func))
    raise CaptureError(
        f"random op {name} has no counter-based form",
        where=user_line(),
        help="draw with torch.rand, randn, bernoulli or dropout, or pass the numbers as an argument",
    )
