"""Losses that are ops of their own; the others are taken apart before they get here."""

from __future__ import annotations

from collections.abc import Callable

from samite.ir.graph import Op
from samite.rules.language import rule


def ctc(text: str, targets: int) -> Callable[[Op], str]:
    """`text` with {n} for the batch and {s} for the targets' dims. Targets in one row are whole, and so the batch."""

    def spell(op: Op) -> str:
        rows = len(op.operands[targets].shape) == 2
        return text.format(n="n" if rows else "N", s="n S" if rows else "S")

    spell.__name__ = "ctc"
    return spell


# Time and classes are whole: each step needs the one before, at the classes that the targets name.
rule("samite::ctc_loss", ctc("T {n} C, {s}, {n}, {n} -> {n}, {n} T W", 1), padding={1: 0, 2: 0, 3: 0})
rule(
    "samite::ctc_loss_backward",
    ctc("{n}, T {n} C, {s}, {n}, {n}, {n}, {n} T W -> T {n} C", 2),
    linear="0",
    padding={2: 0, 3: 0, 4: 0},
)
