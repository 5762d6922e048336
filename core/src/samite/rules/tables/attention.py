"""Attention splits over batch and heads; queries of one group share its keys and values."""

from __future__ import annotations

from samite.ir.graph import Constant, Op
from samite.rules.language import rule


def spell(op: Op, queries: int, mask: int, text: str) -> str:
    """`text` with {b} for the batch dims, {h} and {g} for the heads of queries and of keys, {m} for the mask.

    `queries` is the operand number of the queries, `mask` the argument that is the attention mask.
    """
    q, k = op.operands[queries].shape, op.operands[queries + 1].shape
    grouped = q[-3] != k[-3]
    heads, keys = ("(g r)", "g") if grouped else ("g", "g")
    batch = [f"b{i}" for i in range(len(q) - 3)]
    present = not isinstance(op.form[mask], Constant)
    shape = op.operands[mask].shape if present else ()
    full = [*batch, heads, "S", "T"]
    letters = full[len(full) - len(shape) :]
    masked = " ".join("1" if n == 1 else letter for n, letter in zip(shape, letters, strict=True))
    return text.format(b=" ".join(batch), h=heads, g=keys, m=f"?({masked})" if present else "?(.)")


def forward(op: Op) -> str:
    return spell(op, 0, 3, "{b} {h} S E, {b} {g} T E, {b} {g} T F, {m} -> {b} {h} S F, {b} {h} S")


def backward(op: Op) -> str:
    return spell(
        op,
        1,
        4,
        "{b} {h} S F, {b} {h} S E, {b} {g} T E, {b} {g} T F, {m}, {b} {h} S F, {b} {h} S"
        " -> {b} {h} S E, {b} {g} T E, {b} {g} T F",
    )


rule("samite.sdpa", forward)
rule("samite.sdpa_backward", backward, sum="r", linear="0")
