"""Ops that address a dim by value.

Where that dim is split, indices of other ranks' rows give zeros, and the result is a partial sum; so do indices that
are out of range, which torch refuses. Padded indices are set to 0 (`padding`), since kernels refuse or trust what is
out of range. What writes at indices is in scattering.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.language import rule
from samite.rules.shards import Shards, along


def kept(mine: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.where(mine, x, torch.zeros((), dtype=x.dtype))


# ---- rows of a table -----------------------------------------------------------------------------


def embedding(s: Shards, weight: torch.Tensor, indices: torch.Tensor, **_: Any) -> torch.Tensor:
    if not s.split("v"):
        return torch.ops.aten.embedding(weight, indices)
    position, mine = s.local_index("v", indices)
    return kept(mine[..., None], torch.ops.aten.embedding(weight, position))


def embedding_backward_text(op: Op) -> str:
    """Scaling by frequency counts an index over all indices, so none of them may be elsewhere."""
    return "*A h, *A -> V h" if op.literals["scale_grad_by_freq"] else "*a h, *a -> v h"


def embedding_backward(
    s: Shards,
    grad: torch.Tensor,
    indices: torch.Tensor,
    *,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> torch.Tensor:
    """Rows that are not here, and the row of `padding_idx`, get nothing. (Padded indices come with a gradient of 0.)"""
    if scale_grad_by_freq:
        return torch.ops.aten.embedding_dense_backward(grad, indices, num_weights, padding_idx, True)
    position, mine = s.local_index("v", indices)
    if padding_idx >= 0:
        mine = mine & (indices != padding_idx)
    grad = kept(mine[..., None], grad)
    return torch.ops.aten.embedding_dense_backward(grad, position, s.local_size("v"), -1, False)


def rows(text: str) -> Callable[[Op], str]:
    """`text`; but a 0-d operand has one row and no dim for it, so nothing can be split."""

    def spell(op: Op) -> str:
        if op.operands[0].shape:
            return text
        named = zip("XIS", op.operands, strict=False)
        terms = [" ".join(f"{letter}{i}" for i in range(len(t.shape))) or "." for letter, t in named]
        return f"{', '.join(terms)} -> ."

    spell.__name__ = "rows"
    return spell


def index_select(s: Shards, x: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    if not s.split("d"):
        return x.index_select(dim, index)
    position, mine = s.local_index("d", index)
    return kept(along(mine, dim, x.ndim), x.index_select(dim, position))


rule(
    "embedding",
    "v h, *a -> *a h",
    sum="v",
    indexes="v",
    linear="0",
    increasing="0",
    padding={1: 0},
    local=embedding,
)
rule(
    "embedding_dense_backward",
    embedding_backward_text,
    sum="a",
    indexes="v",
    linear="0",
    padding={1: 0},
    local=embedding_backward,
)
rule(
    "index_select",
    rows("*a d, i -> *a i"),
    sum="d",
    indexes="d",
    at="dim",
    linear="0",
    increasing="0",
    padding={1: 0},
    local=index_select,
)


# ---- one index an element ------------------------------------------------------------------------


def lines(op: Op) -> tuple[list[str], list[str]]:
    """The dims of the operand and of the index. The indexed dim is "d" and "i"; where the others agree they are free,
    else the index stands for a corner of the operand and they are whole."""
    wide, narrow = op.operands[0].shape, op.operands[1].shape
    if len(wide) != len(narrow):  # torch lets an index without elements have any dims
        return [f"D{i}" for i in range(len(wide))], [f"I{i}" for i in range(len(narrow))]
    at = op.literals["dim"] % max(len(wide), 1)
    same = [n == m for n, m in zip(wide, narrow, strict=True)]
    free = [f"a{i}" if n else None for i, n in enumerate(same)]
    operand = ["d" if i == at else free[i] or f"D{i}" for i in range(len(wide))]
    index = ["i" if i == at else free[i] or f"I{i}" for i in range(len(wide))]
    return operand, index


def spell(dims: Sequence[str]) -> str:
    return " ".join(dims) or "."


def gather_text(op: Op) -> str:
    operand, index = lines(op)
    return f"{spell(operand)}, {spell(index)} -> {spell(index)}"


def gather(s: Shards, x: torch.Tensor, index: torch.Tensor, *, dim: int, sparse_grad: bool = False) -> torch.Tensor:
    if not s.split("d"):
        return x.gather(dim, index)
    position, mine = s.local_index("d", index)
    return kept(mine, x.gather(dim, position))


rule("gather", gather_text, sum="d", indexes="d", linear="0", increasing="0", padding={1: 0}, local=gather)
