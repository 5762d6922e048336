"""Ops that address elements of a flattened tensor, or by a mask, as ops that address dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["index_formulas"]

aten = torch.ops.aten


def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat = aten.index_put(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.view(x.shape)


def _take(x: Tensor, index: Tensor) -> Tensor:
    flat = index.reshape(-1)
    places = torch.where(flat < 0, flat + x.numel(), flat)
    return aten.index_select.default(x.reshape(-1), 0, places).view(index.shape)


def _taken(mask: Tensor, count: int) -> Tensor:
    """For each element of a flattened mask, which of `count` elements it takes or gives, if it is true."""
    return (mask.to(torch.int64).cumsum(0) - 1).clamp(0, max(count - 1, 0))


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    if not source.numel():
        return x.clone()
    values = source.reshape(-1)[_taken(mask.reshape(-1), source.numel())]
    return torch.where(mask, values.view(x.shape), x)


def _masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    mask = mask.expand(grad.shape).reshape(-1)
    made = grad.new_zeros(sizes).view(-1)
    given = torch.where(mask, grad.reshape(-1), aten.full.default([], 0, dtype=grad.dtype, device=grad.device))
    return aten.index_add(made, 0, _taken(mask, made.numel()), given).view(sizes) if made.numel() else made.view(sizes)


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """One value where a mask is true needs no list of the places that it goes to."""
    first = indices[0] if len(indices) == 1 else None
    if first is None or first.dtype not in (torch.bool, torch.uint8) or values.numel() != 1:
        return NotImplemented
    mask = first.view([*first.shape, *[1] * (x.dim() - first.dim())]) != 0
    value = values.reshape([]).to(x.dtype)
    return torch.where(mask, x + value if accumulate else value, x)


def _index_put_(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    made = _index_put(x, indices, values, accumulate)
    return made if made is NotImplemented else x.copy_(made)


def _repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """Which element each place of the result repeats. How many places there are must be known."""
    if output_size is None:
        return NotImplemented
    places = torch.arange(output_size, dtype=repeats.dtype, device=repeats.device)
    return aten.searchsorted.Tensor(repeats.cumsum(0, dtype=repeats.dtype), places, right=True).to(repeats.dtype)


def _scatter_reduced(x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    return aten.scatter_reduce.two(x, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


def _scatter_value_reduced(x: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str) -> Tensor:
    src = aten.full.default(index.shape, value, dtype=x.dtype, device=x.device)
    return _scatter_reduced(x, dim, index, src, reduce=reduce)


def index_formulas() -> dict[Any, Callable[..., Any]]:
    return {
        aten.put.default: _put,
        aten.take.default: _take,
        aten.index_put.default: _index_put,
        aten.index_put_.default: _index_put_,
        aten.masked_scatter.default: _masked_scatter,
        aten.masked_scatter_backward.default: _masked_scatter_backward,
        aten.repeat_interleave.Tensor: _repeat_interleave,
        aten.scatter.reduce: _scatter_reduced,
        aten.scatter.value_reduce: _scatter_value_reduced,
    }
