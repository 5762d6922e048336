"""The rules of torch's ops, by family. Importing this package registers them all."""

from __future__ import annotations

from samite.rules.tables import (
    advanced_indexing,
    attention,
    convolution,
    creation,
    elementwise,
    indexing,
    matmul,
    normalization,
    optimizers,
    pooling,
    reductions,
    selections,
    slices,
    views,
)

__all__ = [
    "advanced_indexing",
    "attention",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "matmul",
    "normalization",
    "optimizers",
    "pooling",
    "reductions",
    "selections",
    "slices",
    "views",
]
