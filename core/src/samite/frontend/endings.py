"""Where a backward pass from outside of a compiled function ends: at what the function returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from samite.errors import InputError
from samite.frontend.source import user_line

__all__ = ["ending", "is_ending"]


def ending(make: Callable[[], Tensor], name: str, function: str) -> Tensor:
    """The tensor that `make` gives, with the autograd graph that plain PyTorch would have given it, if gradients are
    enabled: a graph that raises InputError as soon as a backward pass comes to it, so that no gradient is missed."""
    return _Ending.apply(torch.empty(0, requires_grad=True), make, name, function)  # pyright: ignore


def is_ending(tensor: Tensor) -> bool:
    """Whether `tensor` is what `ending` gave."""
    return isinstance(tensor.grad_fn, _Ending._backward_cls)  # pyright: ignore[reportAttributeAccessIssue]


class _Ending(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, make: Callable[[], Tensor], name: str, function: str) -> Tensor:
        ctx.name, ctx.function = name, function
        return make()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise InputError(
            f"a backward pass from outside comes to {ctx.name} of the compiled function {ctx.function}, and ends there",
            where=user_line(),
            help="compile the whole step (forward, loss.backward(), optimizer.step()) as one function; if no gradients "
            "are wanted, call it under torch.no_grad(), or detach what it returns",
        )
