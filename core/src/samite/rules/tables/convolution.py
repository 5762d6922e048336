"""Convolutions over batch and channels. Spatial dims are whole: splitting them needs a halo."""

from __future__ import annotations

from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.language import rule
from samite.rules.shards import Shards


def spatial(op: Op, letter: str, operand: int = 1) -> str:
    return " ".join(f"{letter}{i}" for i in range(len(op.operands[operand].shape) - 2))


def channels(op: Op) -> tuple[str, str, str]:
    """Letters of input channels, output channels, and the weight's input channels; groups tie them to their order."""
    grouped = op.literals["groups"] != 1
    return ("C", "O", "I") if grouped else ("c", "o", "c")


def forward(op: Op) -> str:
    c, o, i = channels(op)
    x, k, y = (spatial(op, letter) for letter in "XKY")
    weight = f"{c} {o} {k}" if op.literals["transposed"] else f"{o} {i} {k}"
    return f"n {c} {x}, {weight}, ?({o}) -> n {o} {y}"


def backward(op: Op) -> str:
    c, o, i = channels(op)
    x, k, y = (spatial(op, letter) for letter in "XKY")
    weight = f"{c} {o} {k}" if op.literals["transposed"] else f"{o} {i} {k}"
    return f"n {o} {y}, n {c} {x}, {weight} -> n {c} {x}, {weight}, {o}"


def backward_local(s: Shards, grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, **literals: Any) -> Any:
    """The bias has as many elements as the local output channels."""
    if literals.get("bias_sizes") is not None:
        literals["bias_sizes"] = [grad.shape[1]]
    return torch.ops.aten.convolution_backward(grad, x, w, **literals)


rule("convolution", forward, sum="c", linear="0 2 | 1 2")
rule("convolution_backward", backward, sum="n c o", linear="0", local=backward_local)
