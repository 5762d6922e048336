"""Searches over a split dim: each rank finds its best, and the best of those is the answer.

The dim is one contiguous factor (`plain`), so ranks hold blocks in order and the first of equal elements stays first,
as torch promises for `max` and `argmax`.
"""

from __future__ import annotations

import torch

from samite.layout import identity
from samite.rules.shards import Shards

__all__ = ["argmax", "argmin", "max_dim", "min_dim"]

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
