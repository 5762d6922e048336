"""Bags of embeddings as lookups and sums over bags: then the table may be split by rows or columns, and indices too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["embedding_bag_formulas"]

aten = torch.ops.aten
_MEAN, _MAX = 1, 2


def _bags(indices: Tensor, offsets: Tensor) -> Tensor:
    """The bag of each index: the last that begins at it or before."""
    places = torch.arange(indices.shape[0], dtype=offsets.dtype, device=offsets.device)
    return aten.searchsorted.Tensor(offsets, places, right=True) - 1


def _kept(indices: Tensor, padding_idx: int) -> Tensor:
    return indices != padding_idx


def _zero(like: Tensor) -> Tensor:
    return aten.full.default([], 0, dtype=like.dtype, device=like.device)


def _by_bag(count: int, bags: Tensor, values: Tensor) -> Tensor:
    made = aten.full.default([count, *values.shape[1:]], 0, dtype=values.dtype, device=values.device)
    return aten.index_add(made, 0, bags, values)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(a row a bag, the bag of each index, the size of each bag, the rows that were largest).

    An empty bag is 0, and its largest rows are -1.
    """
    count = offsets.shape[0] - int(include_last_offset)
    bags, kept = _bags(indices, offsets), _kept(indices, -1 if padding_idx is None else padding_idx)
    rows = aten.embedding.default(weight, indices)
    sizes = _by_bag(count, bags, kept.to(indices.dtype))
    if mode == _MAX:
        most, largest = _largest(rows, indices, bags, kept, sizes)
        return most, bags, sizes, largest
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    found = _by_bag(count, bags, torch.where(kept.unsqueeze(1), rows, _zero(rows)))
    if mode == _MEAN:
        found = found / sizes.clamp(min=1).unsqueeze(1)
    return found, bags, sizes, sizes


def _largest(rows: Tensor, indices: Tensor, bags: Tensor, kept: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """By bag and column the largest element, and the index of the first row that has it."""
    shape, low = [sizes.shape[0], rows.shape[1]], torch.finfo(rows.dtype).min
    rows = torch.where(kept.unsqueeze(1), rows, aten.full.default([], low, dtype=rows.dtype, device=rows.device))
    into = bags.unsqueeze(1).expand(rows.shape)
    made = aten.full.default(shape, low, dtype=rows.dtype, device=rows.device)
    most = aten.scatter_reduce.two(made, 0, into, rows, "amax")
    places = torch.arange(indices.shape[0], device=indices.device).unsqueeze(1).expand(rows.shape)
    last = aten.full.default([], indices.shape[0], dtype=places.dtype, device=places.device)
    first = aten.scatter_reduce.two(last.expand(shape), 0, into, torch.where(rows == most[bags], places, last), "amin")
    filled = (sizes > 0).unsqueeze(1)
    index = indices[first.clamp(max=max(indices.shape[0] - 1, 0))] if indices.shape[0] else first.to(indices.dtype)
    return torch.where(filled, most, _zero(most)), torch.where(filled, index, _zero(index) - 1)


def _embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bags: Tensor,
    sizes: Tensor,
    largest: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    if sparse:
        return NotImplemented
    made = aten.full.default([num_weights, grad.shape[1]], 0, dtype=grad.dtype, device=grad.device)
    if mode == _MAX:
        return aten.scatter_add(made, 0, largest.clamp(min=0), torch.where(largest >= 0, grad, _zero(grad)))
    rows = grad[bags]
    if mode == _MEAN:
        rows = rows / sizes[bags].clamp(min=1).unsqueeze(1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    if scale_grad_by_freq:
        often = _by_bag(num_weights, indices, torch.ones_like(indices))
        rows = rows / often[indices].unsqueeze(1)
    return aten.index_add(made, 0, indices, torch.where(_kept(indices, padding_idx).unsqueeze(1), rows, _zero(rows)))


def _per_sample_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bags: Tensor, mode: int, padding_idx: int = -1
) -> Tensor:
    found = (grad[bags] * aten.embedding.default(weight, indices)).sum(1)
    return torch.where(_kept(indices, padding_idx), found, _zero(found))


def embedding_bag_formulas() -> dict[Any, Callable[..., Any]]:
    forward = ("_embedding_bag", "_embedding_bag_forward_only", "embedding_bag")
    return {
        **{getattr(aten, name).default: _embedding_bag for name in forward},
        aten.embedding_bag.padding_idx: _embedding_bag,
        aten._embedding_bag_backward.default: _embedding_bag_backward,
        aten._embedding_bag_per_sample_weights_backward.default: _per_sample_weights_backward,
    }
