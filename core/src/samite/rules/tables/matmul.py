"""Products: a contracted dim that is split leaves a partial sum."""

from __future__ import annotations

from samite.ir.graph import Op
from samite.rules.language import rule


def bias_term(text: str, rows: str) -> object:
    """The notation with `{}` for a bias that is a vector, a matrix, or broadcasts rows."""

    def spell(op: Op) -> str:
        shape, result = op.operands[0].shape, op.results[0].shape
        letters = rows.split()[-len(shape) :] if shape else ["."]
        offset = len(result) - len(shape)
        return text.format(" ".join("1" if n != result[offset + i] else l for i, (n, l) in enumerate(zip(shape, letters))))

    return spell


rule("mm", "m k, k n -> m n", sum="k", linear="each")
rule("bmm", "b m k, b k n -> b m n", sum="k", linear="each")
rule("mv", "m k, k -> m", sum="k", linear="each")
rule("dot", "k, k -> ", sum="k", linear="each")
rule("addmm", bias_term("{}, m k, k n -> m n", "m n"), sum="k", linear="0 1 | 0 2")
rule("addmv", bias_term("{}, m k, k -> m", "m"), sum="k", linear="0 1 | 0 2")
rule("baddbmm", bias_term("{}, b m k, b k n -> b m n", "b m n"), sum="k", linear="0 1 | 0 2")
