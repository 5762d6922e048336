"""Checksums by which ranks compare tensors that must be equal on all of them."""

from __future__ import annotations

import functools
import zlib
from typing import Any

import torch

__all__ = ["describe", "digest", "sampled_digest"]

SAMPLE = 4096
"""Elements of a sample. With the shape they make a checksum of some 20 µs, whatever the size of the tensor."""


def describe(value: torch.Tensor) -> str:
    return f"{value.dtype}{list(value.shape)}".removeprefix("torch.")


def digest(value: torch.Tensor) -> int:
    """A checksum of a tensor's bytes, with its shape and dtype."""
    return _checksum(value, _elements(value))


def sampled_digest(value: torch.Tensor) -> int:
    """A checksum of `SAMPLE` of a tensor's elements, or of all if they are fewer, with its shape and dtype.

    Batches of other data differ nearly everywhere, and so in any sample. What differs in a few elements may pass.
    """
    elements = _elements(value)
    return _checksum(value, elements if len(elements) <= SAMPLE else elements[_positions(len(elements))])


def _elements(value: torch.Tensor) -> torch.Tensor:
    """The bytes of each element: (numel, itemsize)."""
    flat = value.detach().resolve_conj().resolve_neg().reshape(-1)
    return flat.view(torch.uint8).view(flat.numel(), flat.dtype.itemsize)


def _checksum(value: torch.Tensor, elements: torch.Tensor) -> int:
    data: Any = elements.numpy()
    return zlib.crc32(data, zlib.crc32(describe(value).encode()))


@functools.lru_cache(maxsize=64)
def _positions(numel: int) -> torch.Tensor:
    """Where a sample of so many elements is, the same on every rank. Drawn, since steps of one length could meet one
    column of a matrix alone: the padding of each row."""
    return torch.randint(numel, (SAMPLE,), generator=torch.Generator().manual_seed(numel))
