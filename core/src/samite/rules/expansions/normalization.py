"""Layer normalisation over split dims: its statistics are sums, each an all-reduce of one element a row.

Half precision is computed in float32, as the fused kernels do. The normalised dims are the letters "n0", "n1", ...
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from samite.rules.shards import Shards

__all__ = ["layer_norm", "layer_norm_backward"]


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


class _Rows:
    """Sums over the normalised dims of all shards."""

    def __init__(self, s: Shards, shape: Sequence[int]) -> None:
        self.s, self.count = s, prod(shape)
        self.letters = {f"n{i}": i - len(shape) for i in range(len(shape))}
        self.dims = list(self.letters.values())

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        for letter, dim in self.letters.items():
            x = self.s.mask(x, letter, dim % x.ndim, 0)
        return self.reduced(x.sum(self.dims, keepdim=True))

    def reduced(self, x: torch.Tensor) -> torch.Tensor:
        for letter in self.letters:
            x = self.s.all_reduce(x, letter)
        return x


def layer_norm(
    s: Shards,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    normalized_shape: Sequence[int],
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, x = _Rows(s, normalized_shape), _wide(x)
    mean = rows.sum(x) / rows.count
    centred = x - mean
    rstd = (rows.sum(centred * centred) / rows.count + eps).rsqrt()
    made = centred * rstd
    if weight is not None:
        made = made * weight
    if bias is not None:
        made = made + bias
    return made.to(s.dtype()), mean.to(s.dtype(1)), rstd.to(s.dtype(2))


def layer_norm_backward(
    s: Shards,
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    normalized_shape: Sequence[int],
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    rows, grad = _Rows(s, normalized_shape), _wide(grad)
    dtype, before = x.dtype, list(range(x.ndim - len(normalized_shape)))
    normal = (_wide(x) - mean) * rstd
    dx = dw = db = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * weight
        # Both sums travel together.
        total, along = rows.sum(torch.stack([scaled, scaled * normal])).unbind()
        dx = ((scaled - total / rows.count - normal * along / rows.count) * rstd).to(dtype)
    if output_mask[1]:
        dw = (grad * normal).sum(before).to(dtype) if before else (grad * normal).to(dtype)
    if output_mask[2]:
        db = grad.sum(before).to(dtype) if before else grad.to(dtype)
    return dx, dw, db
