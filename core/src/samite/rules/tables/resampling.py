"""Reading an image between its places: resizing, and sampling at coordinates.

Batch and channels are free, and in nearest and linear resizing, with a halo, so are the spatial dims. What is read is
whole where a result may read anywhere; where coordinates are operands, the places of the result are free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.expansions.resampling import resize, resize_backward
from samite.rules.language import rule
from samite.rules.shards import Shards
from samite.rules.tables.pooling import over, planes, sliding, unrounded


def resized(op: str) -> Callable[..., torch.Tensor]:
    def local(s: Shards, grad: torch.Tensor, **literals: Any) -> torch.Tensor:
        return getattr(torch.ops.aten, op)(grad, **{**literals, "input_size": s.result_shape()})

    return local


def interpolated(spatial: int) -> Callable[[Op], str]:
    """Of integers, which kernels weigh and round in their own way, the spatial dims are whole."""

    def spell(op: Op) -> str:
        return (planes if "int" in op.operands[0].dtype else sliding)("{x} -> {y}", spatial)(op)

    spell.__name__ = "interpolated"
    return spell


SEPARABLE = {
    "nearest": {1: "upsample_nearest1d", 2: "upsample_nearest2d", 3: "upsample_nearest3d"},
    "exact": {1: "_upsample_nearest_exact1d", 2: "_upsample_nearest_exact2d", 3: "_upsample_nearest_exact3d"},
    "linear": {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"},
}
WIDER = ("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
"""Those of two dims that read more places."""

for kind, names in SEPARABLE.items():
    for spatial, name in names.items():
        backward = f"{name}_backward"
        if kind == "linear":
            rule(name, interpolated(spatial), linear=unrounded("all"), **over(resize(kind)))
        else:
            rule(name, sliding("{x} -> {y}", spatial), linear="all", **over(resize(kind)))
        text, local = sliding("{y} -> {x}", spatial), resized(backward)
        rule(backward, text, linear="all", local=local, **over(resize_backward(kind)))
for name in WIDER:
    rule(name, planes("{x} -> {y}", 2), linear=unrounded("all"))
    rule(f"{name}_backward", planes("{y} -> {x}", 2), linear="all", local=resized(f"{name}_backward"))

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
