"""Attention splits over batch and heads; queries of one group share its keys and values."""

from __future__ import annotations

from samite.ir.graph import Op
from samite.rules.language import rule


def grouped(op: Op, first: int) -> tuple[str, str]:
    """The head dims of queries and of keys: "(g r)" and "g" where several query heads share one key head."""
    queries, keys = op.operands[first].shape, op.operands[first + 1].shape
    return ("(g r)", "g") if queries[-3] != keys[-3] else ("g", "g")


def mask_term(op: Op, shape: tuple[int, ...], heads: str) -> str:
    """The attention mask broadcasts over batch, heads and queries."""
    full = ["b", heads, "S", "T"][-len(shape) :]
    return " ".join("1" if n == 1 else letter for n, letter in zip(shape, full, strict=True))


def forward(op: Op) -> str:
    q, k = grouped(op, 0)
    mask = f", {mask_term(op, op.operands[3].shape, q)}" if len(op.operands) == 4 else ""
    return f"b {q} S E, b {k} T E, b {k} T F{mask} -> b {q} S F, b {q} S"


def backward(op: Op) -> str:
    q, k = grouped(op, 1)
    mask = f", {mask_term(op, op.operands[6].shape, q)}" if len(op.operands) == 7 else ""
    return (
        f"b {q} S F, b {q} S E, b {k} T E, b {k} T F, b {q} S F, b {q} S{mask}"
        f" -> b {q} S E, b {k} T E, b {k} T F"
    )


rule("samite.sdpa", forward, whole="r")
rule("samite.sdpa_backward", backward, whole="r", linear="0")
