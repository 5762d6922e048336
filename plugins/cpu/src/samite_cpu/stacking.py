"""Between a dim cut into equal chunks and the chunks one after the other in memory, as collectives move them."""

from __future__ import annotations

import torch

__all__ = ["joined", "stacked"]


def stacked(x: torch.Tensor, dim: int, parts: int) -> torch.Tensor:
    """(..., parts * n, ...) with `parts * n` at `dim` -> (parts, ..., n, ...), contiguous."""
    return x.unflatten(dim, (parts, -1 if x.shape[dim] else 0)).movedim(dim, 0).contiguous()


def joined(chunks: torch.Tensor, dim: int) -> torch.Tensor:
    """(parts, ..., n, ...) -> (..., parts * n, ...) with `parts * n` at `dim`, contiguous."""
    return chunks.movedim(0, dim).flatten(dim, dim + 1).contiguous()
