"""The rules of torch's ops, by family. Importing this package registers them all."""

from __future__ import annotations

from samite.rules.tables import (
    advanced_indexing,
    attention,
    convolution,
    creation,
    elementwise,
    indexing,
    linalg,
    losses,
    matmul,
    normalization,
    optimizers,
    ordering,
    pooling,
    reductions,
    resampling,
    scattering,
    selections,
    slices,
    spectral,
    views,
)

__all__ = [
    "advanced_indexing",
    "attention",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "linalg",
    "losses",
    "matmul",
    "normalization",
    "optimizers",
    "ordering",
    "pooling",
    "reductions",
    "resampling",
    "scattering",
    "selections",
    "slices",
    "spectral",
    "views",
]
