"""Attention splits over batch and heads; queries of one group share its keys and values.

Without a causal mask the queries are independent of each other, so their positions may be split as well.
"""

from __future__ import annotations

from collections.abc import Callable

from samite.ir.graph import Op, Slot
from samite.rules.language import rule


def heads(text: str, queries: int, mask: int) -> Callable[[Op], str]:
    """`text` with {b} for the batch dims, {h} and {g} for the heads of queries and of keys, {s} for the queries'
    positions, {m} for the mask. `queries` is the operand that is the queries, `mask` the argument that is the mask."""

    def spell(op: Op) -> str:
        q, k = op.operands[queries].shape, op.operands[queries + 1].shape
        batch = [f"b{i}" for i in range(len(q) - 3)]
        grouped = "(g r)" if q[-3] != k[-3] else "g"
        positions = "S" if op.literals["is_causal"] else "s"
        term = "."
        given = op.form[mask]
        if isinstance(given, Slot):  # it broadcasts
            shape, full = op.operands[given.position].shape, [*batch, grouped, positions, "T"]
            sizes = [*q[:-1], k[-2]][len(full) - len(shape) :]
            aligned = zip(shape, sizes, full[len(full) - len(shape) :], strict=True)
            term = " ".join(letter if n == m else "1" for n, m, letter in aligned) or "."
        return text.format(b=" ".join(batch), h=grouped, g="g", s=positions, m=f"?({term})")

    spell.__name__ = "heads"
    return spell


# The kernel that torch takes on the CPU, as it reaches the dispatcher outside of a capture.
rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    heads("{b} {h} {s} E, {b} {g} T E, {b} {g} T F, {m} -> {b} {h} {s} F, {b} {h} {s}", 0, 5),
)
rule(
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    heads(
        "{b} {h} {s} F, {b} {h} {s} E, {b} {g} T E, {b} {g} T F, {b} {h} {s} F, {b} {h} {s}, {m}"
        " -> {b} {h} {s} E, {b} {g} T E, {b} {g} T F",
        1,
        8,
    ),
    sum="r s",
    linear="0",
)
rule("samite::sdpa", heads("{b} {h} {s} E, {b} {g} T E, {b} {g} T F, {m} -> {b} {h} {s} F, {b} {h} {s}", 0, 3))
rule(
    "samite::sdpa_backward",
    heads(
        "{b} {h} {s} F, {b} {h} {s} E, {b} {g} T E, {b} {g} T F, {m}, {b} {h} {s} F, {b} {h} {s}"
        " -> {b} {h} {s} E, {b} {g} T E, {b} {g} T F",
        1,
        4,
    ),
    sum="r s",
    linear="0",
)
