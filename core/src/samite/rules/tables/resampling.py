"""Reading an image between its places: resizing, and sampling at coordinates.

Batch and channels are free. What is read is whole, since a result may read anywhere; where coordinates are operands,
the places of the result are free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samite.rules.language import rule
from samite.rules.shards import Shards
from samite.rules.tables.pooling import planes


def resized(op: str) -> Callable[..., torch.Tensor]:
    def local(s: Shards, grad: torch.Tensor, **literals: Any) -> torch.Tensor:
        return getattr(torch.ops.aten, op)(grad, **{**literals, "input_size": s.result_shape()})

    return local


SIZES = {
    1: "upsample_nearest1d _upsample_nearest_exact1d upsample_linear1d",
    2: """upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa
       _upsample_bicubic2d_aa""",
    3: "upsample_nearest3d _upsample_nearest_exact3d upsample_trilinear3d",
}

for spatial, names in SIZES.items():
    for name in names.split():
        rule(name, planes("{x} -> {y}", spatial), linear="all")
        rule(f"{name}_backward", planes("{y} -> {x}", spatial), linear="all", local=resized(f"{name}_backward"))

for sampler, image, places in (
    ("grid_sampler_2d", "n c Y X", "y x"),
    ("grid_sampler_3d", "n c Z Y X", "z y x"),
):
    # Kernels go where coordinates say without a check.
    rule(sampler, f"{image}, n {places} C -> n c {places}", linear="0", padding={1: 0.0})
    rule(
        f"{sampler}_backward",
        f"n c {places}, {image}, n {places} C -> {image}, n {places} C",
        sum=f"c {places}",
        linear="0",
        padding={2: 0.0},
    )
