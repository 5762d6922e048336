"""Weight norm (`torch.nn.utils.parametrizations.weight_norm`) as sums and products: w = v g / |v|."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["weight_norm_formulas"]

aten = torch.ops.aten


def _others(x: Tensor, dim: int) -> list[int]:
    return [d for d in range(x.dim()) if d != dim]


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """The weight, and the norm over all dims but `dim`, in float32 where `v` is narrower."""
    wide = v.to(torch.float32) if v.dtype in (torch.float16, torch.bfloat16) else v
    norm = aten.sum.dim_IntList(wide * wide, _others(v, dim), True).sqrt()
    return (wide * (g / norm)).to(v.dtype), norm


def _weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    along = aten.sum.dim_IntList(grad * v, _others(v, dim), True)
    return (g / norm * (grad - v * (along / (norm * norm)))).to(v.dtype), (along / norm).to(g.dtype)


def weight_norm_formulas() -> dict[Any, Callable[..., Any]]:
    """op -> its decomposition."""
    return {
        aten._weight_norm_interface.default: _weight_norm,
        aten._weight_norm_interface_backward.default: _weight_norm_backward,
    }
