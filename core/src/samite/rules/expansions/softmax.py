"""Softmax and its kin over a split dim: a maximum and a sum, each by an all-reduce of one element a row.

Half precision is computed in float32, as the fused kernels do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samite.rules.shards import Shards

__all__ = ["log_softmax", "log_softmax_backward", "logsumexp", "softmax", "softmax_backward"]


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _shifted(s: Shards, x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(x less its maximum over the dim, the sum of its exponentials)."""
    x = s.mask(_wide(x), "d", dim, -torch.inf)
    shifted = x - s.all_reduce(x.amax(dim, keepdim=True), "d", "max")
    return shifted, s.all_reduce(shifted.exp().sum(dim, keepdim=True), "d")


def softmax(s: Shards, x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
    shifted, total = _shifted(s, x, dim)
    return (shifted.exp() / total).to(s.dtype())


def log_softmax(s: Shards, x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
    shifted, total = _shifted(s, x, dim)
    return (shifted - total.log()).to(s.dtype())


def softmax_backward(s: Shards, grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: Any) -> torch.Tensor:
    product = _wide(grad) * _wide(output)
    total = s.all_reduce(s.mask(product, "d", dim, 0).sum(dim, keepdim=True), "d")
    return (product - _wide(output) * total).to(s.dtype())


def log_softmax_backward(
    s: Shards, grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: Any
) -> torch.Tensor:
    grad = _wide(grad)
    total = s.all_reduce(s.mask(grad, "d", dim, 0).sum(dim, keepdim=True), "d")
    return (grad - _wide(output).exp() * total).to(s.dtype())


def logsumexp(s: Shards, x: torch.Tensor, dim: Sequence[int], keepdim: bool = False) -> torch.Tensor:
    """The maximum is finite, or the row is: an infinite one would make inf - inf. Of complex numbers it is that of the
    real parts."""
    dims = [d % x.ndim for d in dim] or list(range(x.ndim))
    x = s.mask(_wide(x.to(s.dtype())), "r", dims, -torch.inf)
    top = s.all_reduce((x.real if x.is_complex() else x).amax(dims, keepdim=True), "r", "max")
    top = torch.where(top.isinf(), torch.zeros((), dtype=top.dtype), top)
    found = s.all_reduce((x - top).exp().sum(dims, keepdim=True), "r").log() + top
    return (found if keepdim else found.squeeze(dims)).to(s.dtype())
