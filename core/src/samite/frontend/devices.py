"""Erasing devices: a step is traced as if all of it were on the CPU, wherever the user's tensors are.

A program says what is computed, and a mesh where. So `.cuda()`, `.to("cuda")` and `device=` move nothing, and autocast
of an accelerator is autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from samite.frontend.random_arguments import Handler

__all__ = ["HERE", "handlers", "one_device", "without_device"]

HERE = torch.device("cpu")


def handlers() -> dict[Any, Handler]:
    """The methods that move tensors."""
    moves = {getattr(Tensor, name): _stay for name in ("cuda", "cpu", "xpu", "ipu", "hpu") if hasattr(Tensor, name)}
    return {**moves, Tensor.to: _convert}


def _stay(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0]


def _convert(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return func(args[0], *(HERE if isinstance(a, (str, torch.device)) else a for a in args[1:]), **kwargs)


def without_device(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of any function, on the device of the trace."""
    return {**kwargs, "device": HERE} if kwargs.get("device") is not None else kwargs


@contextmanager
def one_device() -> Iterator[None]:
    """Let the default device, and autocast of every device, be that of the trace, set before or from now on."""
    plain = torch.autocast.__init__

    def init(
        self: torch.autocast, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        plain(self, HERE.type, dtype or torch.get_autocast_dtype(device_type), *args, **kwargs)

    entered = next((d for d in ("cuda", "xpu") if torch.is_autocast_enabled(d)), None)
    every = mock.patch.object(torch.autocast, "__init__", init)
    with HERE, every, nullcontext() if entered is None else torch.autocast(entered):
        yield
