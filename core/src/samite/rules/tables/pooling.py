"""Pooling, padding and resizing over batch and channels; spatial dims are whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.language import rule
from samite.rules.shards import Shards


def planes(text: str, spatial: int = 2) -> Callable[[Op], str]:
    """`text` with {x} and {y} for the dims before and after: the last `spatial` ones are whole, those before free."""

    def spell(op: Op) -> str:
        free = [f"n{i}" for i in range(len(op.operands[0].shape) - spatial)]
        dims = {letter: " ".join([*free, *(f"{letter.upper()}{i}" for i in range(spatial))]) for letter in "xy"}
        return text.format(**dims)

    spell.__name__ = "planes"
    return spell


def upsample_backward(op: str) -> Callable[..., torch.Tensor]:
    def local(s: Shards, grad: torch.Tensor, **literals: Any) -> torch.Tensor:
        return getattr(torch.ops.aten, op)(grad, **{**literals, "input_size": s.result_shape()})

    return local


for spatial in (2, 3):
    for largest in (f"max_pool{spatial}d_with_indices", f"adaptive_max_pool{spatial}d"):
        rule(largest, planes("{x} -> {y}, {y}", spatial))
        # The indices count within a plane. Kernels write where they say without a check.
        rule(f"{largest}_backward", planes("{y}, {x}, {y} -> {x}", spatial), linear="0", padding={2: 0})
    for average in (f"avg_pool{spatial}d", f"_adaptive_avg_pool{spatial}d"):
        rule(average, planes("{x} -> {y}", spatial), linear="all")
        rule(f"{average}_backward", planes("{y}, {x} -> {x}", spatial), linear="0")
for spatial in (1, 2, 3):
    for name in (f"reflection_pad{spatial}d", f"replication_pad{spatial}d"):
        rule(name, planes("{x} -> {y}", spatial), linear="all")
        rule(f"{name}_backward", planes("{y}, {x} -> {x}", spatial), linear="0")
for name in ("pixel_shuffle", "pixel_unshuffle"):  # channels become places
    rule(name, planes("{x} -> {y}", spatial=3), linear="all")
for name in ("upsample_nearest2d", "upsample_bilinear2d"):
    rule(name, planes("{x} -> {y}"), linear="all")
    rule(f"{name}_backward", planes("{y} -> {x}"), linear="all", local=upsample_backward(f"{name}_backward"))
