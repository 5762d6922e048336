"""Shifts of integers by numbers, and of numbers, as those by tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

__all__ = ["bit_shifts"]

aten = torch.ops.aten


def _shift(op: Callable[[Tensor, Tensor], Tensor], x: Tensor | int, by: Tensor | int) -> Tensor:
    like = x if isinstance(x, Tensor) else by
    assert isinstance(like, Tensor), "one of the two is a tensor"

    def tensor(value: Tensor | int) -> Tensor:
        if isinstance(value, Tensor):
            return value
        return aten.full.default([], value, dtype=like.dtype, device=like.device)

    return op(tensor(x), tensor(by))


def bit_shifts() -> dict[Any, Callable[..., Any]]:
    """op -> its decomposition."""
    left = partial(_shift, aten.bitwise_left_shift.Tensor)
    right = partial(_shift, aten.bitwise_right_shift.Tensor)
    return {
        aten.__lshift__.Tensor: left,
        aten.__lshift__.Scalar: left,
        aten.bitwise_left_shift.Tensor_Scalar: left,
        aten.bitwise_left_shift.Scalar_Tensor: left,
        aten.__rshift__.Tensor: right,
        aten.__rshift__.Scalar: right,
        aten.bitwise_right_shift.Tensor_Scalar: right,
        aten.bitwise_right_shift.Scalar_Tensor: right,
    }
