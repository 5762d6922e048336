"""Pooling and padding over batch and channels; spatial dims are whole."""

from __future__ import annotations

from collections.abc import Callable

from samite.ir.graph import Op
from samite.rules.language import rule


def planes(text: str, spatial: int = 2) -> Callable[[Op], str]:
    """`text` with {x} and {y} for the dims before and after: the last `spatial` ones are whole, those before free."""

    def spell(op: Op) -> str:
        free = [f"n{i}" for i in range(len(op.operands[0].shape) - spatial)]
        dims = {letter: " ".join([*free, *(f"{letter.upper()}{i}" for i in range(spatial))]) for letter in "xy"}
        return text.format(**dims)

    spell.__name__ = "planes"
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
for spatial in (2, 3):
    name = f"fractional_max_pool{spatial}d"
    rule(name, fractional(spatial))
    rule(f"{name}_backward", planes("{y}, {x}, {y} -> {x}", spatial), linear="0", padding={2: 0})
rule("im2col", columns, linear="all")
rule("col2im", columns, linear="all")
