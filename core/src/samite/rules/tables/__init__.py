"""The rules of torch's ops, by family. Importing this package registers them all."""

from __future__ import annotations

from samite.rules.tables import (
    attention,
    convolution,
    creation,
    elementwise,
    indexing,
    matmul,
    normalization,
    pooling,
    reductions,
    views,
)

__all__ = [
    "attention",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "matmul",
    "normalization",
    "pooling",
    "reductions",
    "views",
]
