"""Pooling over batch and channels; spatial dims are whole."""

from __future__ import annotations

from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.language import rule
from samite.rules.shards import Shards


def pooled(results: int) -> Any:
    def spell(op: Op) -> str:
        batch = "n c" if len(op.operands[0].shape) == 4 else "c"
        return f"{batch} X Y -> " + ", ".join([f"{batch} P Q"] * results)

    return spell


def pooled_backward(indexed: bool) -> Any:
    def spell(op: Op) -> str:
        batch = "n c" if len(op.operands[0].shape) == 4 else "c"
        return f"{batch} P Q, {batch} X Y{f', {batch} P Q' if indexed else ''} -> {batch} X Y"

    return spell


def upsampled(op: Op) -> str:
    return "n c X Y -> n c P Q"


def upsampled_backward_local(s: Shards, grad: torch.Tensor, **literals: Any) -> torch.Tensor:
    literals["input_size"] = s.result_shape()
    return torch.ops.aten.upsample_nearest2d_backward(grad, **literals)


rule("max_pool2d_with_indices", pooled(2))
rule("max_pool2d_with_indices_backward", pooled_backward(indexed=True), linear="0")
rule("avg_pool2d", pooled(1), linear="all")
rule("avg_pool2d_backward", pooled_backward(indexed=False), linear="0")
rule("_adaptive_avg_pool2d", pooled(1), linear="all")
rule("_adaptive_avg_pool2d_backward", pooled_backward(indexed=False), linear="0")
rule("upsample_nearest2d", upsampled, linear="all")
rule("upsample_nearest2d_backward", upsampled, linear="all", local=upsampled_backward_local)
