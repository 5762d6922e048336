"""Convolutions over batch, channels, groups and, with a halo, spatial dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.expansions.convolution import convolution, convolution_backward
from samite.rules.language import rule
from samite.rules.shards import Shards

SPATIAL = "x0 y0 | x1 y1 | x2 y2"
ONE_GROUP = {"x": "c", "y": "o", "weight": "o c", "transposed": "c o"}
GROUPS = {"x": "(g c)", "y": "(g o)", "weight": "(g o) c", "transposed": "(g c) o"}


def channels(text: str, weight: int) -> Callable[[Op], str]:
    """`text` with {X} and {Y} for the channels of input and output, {w} for the weight's, {x} {K} {y} for the spatial
    dims of input, kernel and output. The group is a letter of its own: in a depthwise convolution it is the channel."""

    def spell(op: Op) -> str:
        spelled = ONE_GROUP if op.literals["groups"] == 1 else GROUPS
        spatial = len(op.operands[weight].shape) - 2
        dims = {letter: " ".join(f"{letter}{i}" for i in range(spatial)) for letter in "xKy"}
        kernel = spelled["transposed" if op.literals["transposed"] else "weight"]
        return text.format(X=spelled["x"], Y=spelled["y"], w=kernel, **dims)

    spell.__name__ = "channels"
    return spell


def groups(s: Shards, count: int) -> int:
    return s.local_size("g") if count != 1 else 1


def forward(
    s: Shards, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, **literals: Any
) -> torch.Tensor:
    literals["groups"] = groups(s, literals["groups"])
    return torch.ops.aten.convolution(x, weight, bias, **literals)


def backward(
    s: Shards,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias_sizes: Sequence[int] | None,
    **literals: Any,
) -> Any:
    """The bias has an element for each output channel; its gradient does not depend on the input channels, so every
    rank that holds others of them has it whole."""
    literals["groups"] = groups(s, literals["groups"])
    sizes = None if bias_sizes is None else [grad.shape[1]]
    dx, dw, db = torch.ops.aten.convolution_backward(grad, x, weight, sizes, **literals)
    return dx, dw, db if db is None else s.once(db, "c")


rule(
    "convolution",
    channels("n {X} {x}, {w} {K}, ?({Y}) -> n {Y} {y}", weight=1),
    sum="c",
    linear="0 2 | 1 2",
    window=SPATIAL,
    local=forward,
    expand={f"x{i}": convolution for i in range(3)},
)
rule(
    "convolution_backward",
    channels("n {Y} {y}, n {X} {x}, {w} {K} -> n {X} {x}, {w} {K}, {Y}", weight=2),
    sum="n c o y0 y1 y2",
    linear="0",
    window=SPATIAL,
    local=backward,
    expand={f"x{i}": convolution_backward for i in range(3)},
)
