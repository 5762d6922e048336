"""Convolutions over split spatial dims: each rank fetches what its outputs read beyond its part of the input.

Forward, input gradient and weight gradient are two movements. *Down*: a range of the narrow side (the output; of a
transposed convolution the input) reads a longer range of the wide side, which an ordinary convolution takes. *Up*: a
range of the wide side gets something from a range of the narrow side, which a transposed convolution takes; it makes a
little more than this rank's part, which is then cut. Padding is what lies outside of the dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samite.rules.shards import Shards
from samite.rules.windows import Sliding, cut, fetch, starts

__all__ = ["convolution", "convolution_backward"]


class _Geometry:
    """One call: the sliding of every spatial dim, its letters on the wide and the narrow side, and which are split."""

    def __init__(self, s: Shards, weight: torch.Tensor, literals: dict[str, Any]) -> None:
        self.s, self.groups = s, s.local_size("g") if literals["groups"] != 1 else 1
        spatial = weight.ndim - 2

        def each(name: str) -> list[int]:
            return literals[name] * (spatial if len(literals[name]) == 1 else 1)

        kernel, stride, padding, dilation = weight.shape[2:], each("stride"), each("padding"), each("dilation")
        self.sliding = [Sliding(*given) for given in zip(kernel, stride, padding, dilation, strict=True)]
        sides = [f"x{i}" for i in range(spatial)], [f"y{i}" for i in range(spatial)]
        self.wide, self.narrow = reversed(sides) if literals["transposed"] else sides
        self.split = [s.split(letter) for letter in self.wide]
        self.stride, self.dilation = stride, dilation
        # What is fetched has the padding in it.
        self.padding = [0 if split else p for split, p in zip(self.split, padding, strict=True)]

    def under(self, wide: torch.Tensor) -> torch.Tensor:
        """Down: what this rank's part of the narrow side reads."""
        for i, (sliding, split) in enumerate(zip(self.sliding, self.split, strict=True)):
            if split:
                need = sliding.inputs(self.s.local_size(self.narrow[i]))
                wide = fetch(self.s, wide, self.wide[i], i + 2, self.narrow[i], sliding.first_input, need)
        return wide

    def over(self, narrow: torch.Tensor) -> torch.Tensor:
        """Up: what reads this rank's part of the wide side."""
        for i, (sliding, split) in enumerate(zip(self.sliding, self.split, strict=True)):
            if split:
                letter = self.wide[i]
                need = sliding.outputs(starts(self.s, letter), self.s.local_size(letter))
                narrow = fetch(self.s, narrow, self.narrow[i], i + 2, letter, sliding.first_output, need)
        return narrow

    def down(self, wide: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        none = [0] * len(self.stride)
        geometry = (self.stride, self.padding, self.dilation, False, none, self.groups)
        narrow = torch.ops.aten.convolution(self.under(wide), weight, bias, *geometry)
        # Output padding of a transposed convolution can make room for outputs more.
        return narrow[(..., *(slice(self.s.local_size(letter)) for letter in self.narrow))]

    def up(self, narrow: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        # A whole dim's length does not follow from its outputs: with a stride several lengths have as many.
        missing = [
            0 if split else self.s.size(letter) - sliding.inputs(narrow.shape[i + 2]) + 2 * sliding.padding
            for i, (letter, sliding, split) in enumerate(zip(self.wide, self.sliding, self.split, strict=True))
        ]
        geometry = (self.stride, self.padding, self.dilation, True, missing, self.groups)
        wide = torch.ops.aten.convolution(self.over(narrow), weight, bias, *geometry)
        for i, (sliding, split) in enumerate(zip(self.sliding, self.split, strict=True)):
            if split:
                wide = cut(self.s, wide, self.wide[i], i + 2, sliding.skipped)
        return wide

    def weight(self, wide: torch.Tensor, narrow: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The gradient of the weight, a sum over this rank's part of the narrow side."""
        none = [0] * len(self.stride)
        geometry = (self.stride, self.padding, self.dilation, False, none, self.groups)
        wide, only = self.under(wide), [False, True, False]
        for i, (sliding, padding) in enumerate(zip(self.sliding, self.padding, strict=True)):
            read = (wide.shape[i + 2] + 2 * padding - sliding.reach - 1) // sliding.stride + 1
            more = [0] * (2 * (narrow.ndim - i - 3)) + [0, read - narrow.shape[i + 2]]
            narrow = torch.ops.aten.constant_pad_nd(narrow, more) if any(more) else narrow
        return torch.ops.aten.convolution_backward(narrow, wide, weight, None, *geometry, only)[1]


def convolution(
    s: Shards, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, **literals: Any
) -> torch.Tensor:
    geometry = _Geometry(s, weight, literals)
    return geometry.up(x, weight, bias) if literals["transposed"] else geometry.down(x, weight, bias)


def convolution_backward(
    s: Shards,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    output_mask: Sequence[bool],
    **literals: Any,
) -> tuple[torch.Tensor | None, ...]:
    """Padding of `grad` is 0, since its letters are summed; that of `x` is made so where `x` is summed over itself."""
    geometry = _Geometry(s, weight, literals)
    dx = dw = db = None
    if literals["transposed"]:
        if output_mask[0]:
            dx = geometry.down(grad, weight)
        if output_mask[1]:
            for i, letter in enumerate(geometry.narrow):
                x = s.mask(x, letter, i + 2, 0)
            dw = geometry.weight(grad, x, weight)
    else:
        if output_mask[0]:
            dx = geometry.up(grad, weight)
        if output_mask[1]:
            dw = geometry.weight(x, grad, weight)
    if output_mask[2]:
        db = s.once(grad.sum([0, *range(2, grad.ndim)]), "c")
    return dx, dw, db
