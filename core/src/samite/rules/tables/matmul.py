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


rule("mm", "m k, k n -> m n", sum="k", linear="each")
rule("bmm", "b m k, b k n -> b m n", sum="k", linear="each")
rule("mv", "m k, k -> m", sum="k", linear="each")
rule("dot", "k, k -> .", sum="k", linear="each")
rule("addmm", with_bias("m n", "m k, k n"), sum="k", linear="0 1 | 0 2")
rule("addmv", with_bias("m", "m k, k"), sum="k", linear="0 1 | 0 2")
rule("addbmm", with_bias("m n", "b m k, b k n"), sum="b k", linear="0 1 | 0 2")
rule("baddbmm", with_bias("b m n", "b m k, b k n"), sum="k", linear="0 1 | 0 2")
