"""Ops that address a dim by value.

Where that dim is split, indices of other ranks' rows give zeros, and the result is a partial sum; or, where rows are
written, they go nowhere; so do indices that are out of range, which torch refuses. Padded indices are set to 0
(`padding`), since kernels refuse or trust what is out of range.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def index_select(s: Shards, x: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    if not s.split("d"):
        return x.index_select(dim, index)
    position, mine = s.local_index("d", index)
    return kept(along(mine, dim, x.ndim), x.index_select(dim, position))


def index_add(
    s: Shards, x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *, dim: int, alpha: float = 1
) -> torch.Tensor:
    if s.split("d"):
        index, mine = s.local_index("d", index)
        source = kept(along(mine, dim, x.ndim), source)
    return torch.ops.aten.index_add(x, dim, index, source, alpha=alpha)


rule("embedding", "v h, *a -> *a h", sum="v", indexes="v", linear="0", padding={1: 0}, local=embedding)
rule(
    "embedding_dense_backward",
    embedding_backward_text,
    sum="a",
    indexes="v",
    linear="0",
    padding={1: 0},
    local=embedding_backward,
)
rule("index_select", "*a d, i -> *a i", sum="d", indexes="d", at="dim", linear="0", padding={1: 0}, local=index_select)
rule(
    "index_add",
    "*a d, i, *a i -> *a d",
    sum="i",
    indexes="d",
    at="dim",
    linear="0 2",
    padding={1: 0},
    local=index_add,
)
rule("index_fill.int_Scalar", "*a D, I -> *a D", at="dim")
rule("index_fill.int_Tensor", "*a D, I, . -> *a D", at="dim")


# ---- one index an element ------------------------------------------------------------------------


def lines(op: Op) -> tuple[list[str], list[str]]:
    """The dims of the operand and of the index. The indexed dim is "d" and "i"; where the others agree they are free,
    else the index stands for a corner of the operand and they are whole."""
    wide, narrow = op.operands[0].shape, op.operands[1].shape
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


def scatter_text(op: Op) -> str:
    """Several elements may go to one place: in order, so the index is whole, unless they are added up."""
    operand, index = lines(op)
    index = [d.upper() if d == "i" and op.name != "aten.scatter_add" else d for d in index]
    source = ""
    if len(op.operands) == 3:  # it may be larger than the index, which then stands for a corner of it
        fits = op.operands[1].shape == op.operands[2].shape
        source = f", {spell(index if fits else [f'S{i}' for i in range(len(index))])}"
        if not fits:
            operand, index = ([d.upper() if d != "d" else d for d in dims] for dims in (operand, index))
    return f"{spell(operand)}, {spell(index)}{source} -> {spell(operand)}"


def scatter(s: Shards, x: torch.Tensor, index: torch.Tensor, src: Any = None, **literals: Any) -> torch.Tensor:
    """What goes to other ranks goes to one row more than there are, which is then cut off."""
    dim, value = literals["dim"], literals.get("value")

    def put(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        if src is None:
            return torch.ops.aten.scatter.value(x, dim, index, value)
        return torch.ops.aten.scatter.src(x, dim, index, src)

    if not s.split("d"):
        return put(x, index)
    position, mine = s.local_index("d", index)
    rows = x.shape[dim]
    grown = torch.cat([x, torch.zeros_like(x.narrow(dim, 0, 1))], dim)
    return put(grown, torch.where(mine, position, rows)).narrow(dim, 0, rows).contiguous()


def scatter_add(s: Shards, x: torch.Tensor, index: torch.Tensor, src: torch.Tensor, *, dim: int) -> torch.Tensor:
    if s.split("d"):
        index, mine = s.local_index("d", index)
        # The source may be larger than the index.
        src = kept(mine, src[tuple(slice(n) for n in index.shape)])
    return torch.ops.aten.scatter_add(x, dim, index, src)


rule("gather", gather_text, sum="d", indexes="d", linear="0", padding={1: 0}, local=gather)
rule("scatter.src", scatter_text, indexes="d", padding={1: 0}, local=scatter)
rule("scatter.value", scatter_text, indexes="d", padding={1: 0}, local=scatter)
rule("scatter_add", scatter_text, sum="i", indexes="d", linear="0 2", padding={1: 0}, local=scatter_add)
