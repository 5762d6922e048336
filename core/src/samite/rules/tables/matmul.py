"""Products: a contracted dim that is split leaves a partial sum."""

from __future__ import annotations

from collections.abc import Callable

from samite.ir.graph import Op
from samite.rules.language import rule


def with_bias(result: str, factors: str) -> Callable[[Op], str]:
    """The notation of `bias + product`: the bias has the last dims of the result, or 1 where it broadcasts."""

    def text(op: Op) -> str:
        bias, whole = op.operands[0].shape, op.results[0].shape
        aligned = zip(bias, whole[len(whole) - len(bias) :], result.split()[len(whole) - len(bias) :], strict=True)
        term = " ".join(letter if n == m else "1" for n, m, letter in aligned)
        return f"{term or '.'}, {factors} -> {result}"

    text.__name__ = "with_bias"
    return text


def scaled(op: Op) -> str:
    """A product of 8-bit factors and their scales, of which rows of the result may have one each. Kernels take columns
    by the sixteen, and add terms in more digits than results have, so the other dims are whole; scales of blocks keep
    rows whole too."""
    rows = op.results[0].shape[0]
    others = [type.shape for type in op.operands[2:]]
    row = "m" if all(shape[:1] in ((), (1,), (rows,)) and len(shape) < 3 for shape in others) else "M"
    terms = [
        " ".join(row if d == 0 and n == rows and len(shape) == 2 else f"B{i}{d}" for d, n in enumerate(shape)) or "."
        for i, shape in enumerate(others)
    ]
    return f"{', '.join((f'{row} K', 'K N', *terms))} -> {row} N"


rule("mm", "m k, k n -> m n", sum="k", linear="each")
rule("bmm", "b m k, b k n -> b m n", sum="k", linear="each")
rule("mv", "m k, k -> m", sum="k", linear="each")
rule("dot", "k, k -> .", sum="k", linear="each")
rule("addmm", with_bias("m n", "m k, k n"), sum="k", linear="0 1 | 0 2")
rule("addmv", with_bias("m", "m k, k"), sum="k", linear="0 1 | 0 2")
rule("addbmm", with_bias("m n", "b m k, b k n"), sum="b k", linear="0 1 | 0 2")
rule("baddbmm", with_bias("b m n", "b m k, b k n"), sum="k", linear="0 1 | 0 2")
rule("_scaled_mm", scaled)
rule("_scaled_mm_v2", scaled)
