"""Convolutions over batch, channels and groups. Spatial dims are whole: splitting them needs a halo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.language import rule
from samite.rules.shards import Shards

ONE_GROUP = {"x": "c", "y": "o", "weight": "o c", "transposed": "c o"}
GROUPS = {"x": "(g c)", "y": "(g o)", "weight": "(g o) c", "transposed": "(g c) o"}


def channels(text: str, weight: int) -> Callable[[Op], str]:
    """`text` with {x} and {y} for the channels of input and output, {w} for the weight's, {X} {K} {Y} for the spatial
    dims of input, kernel and output. The group is a letter of its own: in a depthwise convolution it is the channel."""

    def spell(op: Op) -> str:
        spelled = ONE_GROUP if op.literals["groups"] == 1 else GROUPS
        spatial = len(op.operands[weight].shape) - 2
        dims = {letter: " ".join(f"{letter}{i}" for i in range(spatial)) for letter in "XKY"}
        kernel = spelled["transposed" if op.literals["transposed"] else "weight"]
        return text.format(x=spelled["x"], y=spelled["y"], w=kernel, **dims)

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
    channels("n {x} {X}, {w} {K}, ?({y}) -> n {y} {Y}", weight=1),
    sum="c",
    linear="0 2 | 1 2",
    local=forward,
)
rule(
    "convolution_backward",
    channels("n {y} {Y}, n {x} {X}, {w} {K} -> n {x} {X}, {w} {K}, {y}", weight=2),
    sum="n c o",
    linear="0",
    local=backward,
)
