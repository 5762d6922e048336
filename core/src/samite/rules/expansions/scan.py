"""Scans over a split dim: each rank scans its block, and then joins what the blocks before it come to.

The dim is one contiguous factor (`plain`), so ranks hold blocks in the order of their index, and empty ones come last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samite.layout import identity
from samite.rules.shards import Shards, along

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"]


def _before(s: Shards, totals: torch.Tensor, dim: int, neutral: float) -> torch.Tensor:
    """The totals of all blocks along `dim`, those of this one and of later ones neutral."""
    gathered = s.all_gather(totals, "d", dim)
    earlier = along(torch.arange(s.peers("d")) < s.index("d"), dim, totals.ndim)
    return torch.where(earlier, gathered, torch.full((), neutral, dtype=totals.dtype))


def cumsum(s: Shards, x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    x = s.mask(x, "d", dim, 0).to(s.dtype())
    before = _before(s, x.sum(dim, keepdim=True, dtype=s.dtype()), dim, 0)
    return x.cumsum(dim, dtype=s.dtype()) + before.sum(dim, keepdim=True, dtype=s.dtype())


def cumprod(s: Shards, x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    x = s.mask(x, "d", dim, 1).to(s.dtype())
    before = _before(s, x.prod(dim, keepdim=True, dtype=s.dtype()), dim, 1)
    return x.cumprod(dim, dtype=s.dtype()) * before.prod(dim, keepdim=True, dtype=s.dtype())


def logcumsumexp(s: Shards, x: torch.Tensor, dim: int) -> torch.Tensor:
    x = s.mask(x, "d", dim, -torch.inf)
    before = _before(s, x.logsumexp(dim, keepdim=True), dim, -torch.inf)
    return torch.logaddexp(x.logcumsumexp(dim), before.logsumexp(dim, keepdim=True))


def _best(largest: bool) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Of equal elements the last is meant, and a NaN is better than any number."""
    scan = torch.ops.aten.cummax if largest else torch.ops.aten.cummin

    def expand(s: Shards, x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = s.mask(x, "d", dim, identity("max" if largest else "min", str(x.dtype).removeprefix("torch.")))
        values, places = scan(x, dim)
        indices = s.positions("d")[places]
        valid = s.valid("d")
        last = x.shape[dim] - 1 if valid is None else (valid.sum() - 1).clamp(min=0)
        at = torch.full((1,), 0, dtype=torch.int64) + last
        totals, owners = (s.all_gather(part.index_select(dim, at), "d", dim) for part in (values, indices))
        totals, blocks = scan(totals, dim)
        previous = (s.index("d") - 1).clamp(min=0).view(1)
        best, owner = totals.index_select(dim, previous), owners.gather(dim, blocks.index_select(dim, previous))
        better = values >= best if largest else values <= best
        mine = (s.index("d") == 0) | values.isnan() | (better & ~best.isnan())
        return torch.where(mine, values, best), torch.where(mine, indices, owner)

    expand.__name__ = "cummax" if largest else "cummin"
    return expand


cummax, cummin = _best(largest=True), _best(largest=False)
