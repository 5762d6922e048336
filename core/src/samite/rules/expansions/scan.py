"""Scans over a split dim: each rank scans its block, and adds what the blocks before it come to."""

from __future__ import annotations

from typing import Any

import torch

from samite.rules.shards import Shards, along

__all__ = ["cumsum"]


def cumsum(s: Shards, x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    """The dim is one contiguous factor (`plain`), so ranks hold blocks in the order of their index."""
    x = s.mask(x, "d", dim, 0).to(s.dtype())
    totals = s.all_gather(x.sum(dim, keepdim=True, dtype=s.dtype()), "d", dim)
    earlier = along(torch.arange(s.peers("d")) < s.index("d"), dim, x.ndim)
    before = torch.where(earlier, totals, torch.zeros((), dtype=totals.dtype)).sum(dim, keepdim=True, dtype=s.dtype())
    return x.cumsum(dim, dtype=s.dtype()) + before
