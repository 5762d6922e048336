"""Searches over a split dim: each rank finds its best, and the best of those is the answer.

The dim is one contiguous factor (`plain`), so ranks hold blocks in order and the first of equal elements stays first,
as torch promises for `max` and `argmax`.
"""

from __future__ import annotations

import torch

from samite.layout import identity
from samite.rules.shards import Shards

__all__ = ["argmax", "argmin", "max_dim", "min_dim", "topk"]

Found = tuple[torch.Tensor, torch.Tensor]
"""(values, global indices)"""


def _masked(s: Shards, x: torch.Tensor, dim: int, largest: bool) -> torch.Tensor:
    return s.mask(x, "d", dim, identity("max" if largest else "min", str(x.dtype).removeprefix("torch.")))


def _best(s: Shards, x: torch.Tensor, dim: int, keepdim: bool, largest: bool) -> Found:
    """Padding stands last in every block and the first block has an element, so padding never is the first best."""
    best = torch.ops.aten.max.dim if largest else torch.ops.aten.min.dim
    values, places = best(_masked(s, x, dim, largest), dim, True)
    values, indices = s.all_gather(values, "d", dim), s.all_gather(s.positions("d")[places], "d", dim)
    values, places = best(values, dim, True)
    indices = indices.gather(dim, places)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def max_dim(s: Shards, x: torch.Tensor, dim: int, keepdim: bool = False) -> Found:
    return _best(s, x, dim, keepdim, largest=True)


def min_dim(s: Shards, x: torch.Tensor, dim: int, keepdim: bool = False) -> Found:
    return _best(s, x, dim, keepdim, largest=False)


def argmax(s: Shards, x: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
    return _best(s, x, dim, keepdim, largest=True)[1]


def argmin(s: Shards, x: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
    return _best(s, x, dim, keepdim, largest=False)[1]


def topk(s: Shards, x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Found:
    """Padding is as bad as an element can be. Elements may be so too (masked logits), and go before it."""
    valid, positions = s.valid("d"), s.positions("d")
    values, places = _first(_masked(s, x, dim, largest), k, dim, largest, stable=valid is not None)
    if valid is not None:
        positions = torch.where(valid, positions, s.size("d"))
    values, indices = s.all_gather(values, "d", dim), s.all_gather(positions[places], "d", dim)
    if valid is not None:
        order = (indices == s.size("d")).to(torch.int8).argsort(dim=dim, stable=True)
        values, indices = values.gather(dim, order), indices.gather(dim, order)
    values, places = _first(values, k, dim, largest, stable=valid is not None)
    return values, indices.gather(dim, places)


def _first(x: torch.Tensor, k: int, dim: int, largest: bool, stable: bool) -> Found:
    k = min(k, x.shape[dim])
    if not stable:
        values, places = x.topk(k, dim, largest)
        return values, places
    values, places = x.sort(dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k).contiguous(), places.narrow(dim, 0, k).contiguous()
