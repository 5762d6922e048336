"""Pooling over batch, channels and, with a halo, spatial dims; padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from samite.ir.graph import Op
from samite.rules.expansions.pooling import average_pool, average_pool_backward, max_pool, max_pool_backward
from samite.rules.language import rule


def planes(text: str, spatial: int = 2) -> Callable[[Op], str]:
    """`text` with {x} and {y} for the dims before and after: the last `spatial` ones are whole, those before free."""

    def spell(op: Op) -> str:
        free = [f"n{i}" for i in range(len(op.operands[0].shape) - spatial)]
        dims = {letter: " ".join([*free, *(f"{letter.upper()}{i}" for i in range(spatial))]) for letter in "xy"}
        return text.format(**dims)

    spell.__name__ = "planes"
    return spell


def sliding(text: str, spatial: int) -> Callable[[Op], str]:
    """`planes`, but the spatial dims are free."""

    def spell(op: Op) -> str:
        return planes(text, spatial)(op).replace("X", "x").replace("Y", "y")

    spell.__name__ = "sliding"
    return spell


def fractional(spatial: int) -> Callable[[Op], str]:
    """Where windows lie is drawn for each plane: the second operand."""

    def spell(op: Op) -> str:
        batch = "n" if len(op.operands[0].shape) == spatial + 2 else ""
        before, after = (" ".join(f"{letter}{i}" for i in range(spatial)) for letter in "XY")
        return f"{batch} c {before}, {batch or 'N'} c R -> {batch} c {after}, {batch} c {after}"

    spell.__name__ = "fractional"
    return spell


def columns(op: Op) -> str:
    """The elements of a window are minor to the channel."""
    batch = "n" if len(op.operands[0].shape) == (4 if op.name == "aten.im2col" else 3) else ""
    image, windows = f"{batch} c Y X", f"{batch} (c K) L"
    return f"{image} -> {windows}" if op.name == "aten.im2col" else f"{windows} -> {image}"


def unrounded(sets: str) -> Callable[[Op], str]:
    """The operand sets that are linear where numbers are not rounded: a mean of integers is, so it is no sum of the
    means of terms."""

    def spell(op: Op) -> str:
        return sets if "int" not in op.operands[0].dtype else ""

    spell.__name__ = "unrounded"
    return spell


def over(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Options of a rule that slides windows over its spatial dims."""
    return {"window": "x0 y0 | x1 y1 | x2 y2", "expand": {f"x{i}": function for i in range(3)}}


for spatial in (2, 3):
    name = f"max_pool{spatial}d_with_indices"
    rule(name, sliding("{x} -> {y}, {y}", spatial), **over(max_pool(name)))
    # The indices count within a plane. Kernels write where they say without a check.
    options = {"linear": "0", "padding": {2: 0}}
    rule(f"{name}_backward", sliding("{y}, {x}, {y} -> {x}", spatial), **options, **over(max_pool_backward))
    name = f"avg_pool{spatial}d"
    rule(name, sliding("{x} -> {y}", spatial), linear=unrounded("all"), **over(average_pool(name)))
    backward = sliding("{y}, {x} -> {x}", spatial)
    rule(f"{name}_backward", backward, linear=unrounded("0"), **over(average_pool_backward(name)))
    # The windows of adaptive pools differ in length.
    name = f"adaptive_max_pool{spatial}d"
    rule(name, planes("{x} -> {y}, {y}", spatial))
    rule(f"{name}_backward", planes("{y}, {x}, {y} -> {x}", spatial), **options)
    name = f"_adaptive_avg_pool{spatial}d"
    rule(name, planes("{x} -> {y}", spatial), linear=unrounded("all"))
    rule(f"{name}_backward", planes("{y}, {x} -> {x}", spatial), linear="0")
for spatial in (1, 2, 3):
    for name in (f"reflection_pad{spatial}d", f"replication_pad{spatial}d"):
        rule(name, planes("{x} -> {y}", spatial), linear="all")
        rule(f"{name}_backward", planes("{y}, {x} -> {x}", spatial), linear="0")
for name in ("pixel_shuffle", "pixel_unshuffle"):  # channels become places
    rule(name, planes("{x} -> {y}", spatial=3), linear="all")
for spatial in (2, 3):
    name = f"fractional_max_pool{spatial}d"
    rule(name, fractional(spatial))
    rule(f"{name}_backward", planes("{y}, {x}, {y} -> {x}", spatial), linear="0", padding={2: 0})
rule("im2col", columns, linear="all")
rule("col2im", columns, linear="all")
