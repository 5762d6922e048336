"""Ops that address a dim by value. Where that dim is split, indices of other ranks' rows give zeros, and the result is
a partial sum."""

from __future__ import annotations

from typing import Any

import torch

from samite.ir.graph import ListOf, Op, Slot
from samite.rules.language import rule
from samite.rules.shards import Shards, along


def embedding(s: Shards, weight: torch.Tensor, indices: torch.Tensor, **_: Any) -> torch.Tensor:
    if not s.split("v"):
        return torch.ops.aten.embedding(weight, indices)
    position, mine = s.locate("v", indices)
    return torch.where(mine[..., None], torch.ops.aten.embedding(weight, position), 0.0)


def embedding_backward(
    s: Shards,
    grad: torch.Tensor,
    indices: torch.Tensor,
    num_weights: int,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
) -> torch.Tensor:
    """Rows that are not here, and rows of padding, go nowhere."""
    rows = s.local_size("v")
    position, mine = s.locate("v", indices) if s.split("v") else (indices, None)
    if padding_idx >= 0:
        keep = indices != padding_idx
        mine = keep if mine is None else mine & keep
    for dim, letter in enumerate(s.letters("a")):
        valid = s.valid(letter)
        if valid is not None:
            here = along(valid, dim, indices.ndim)
            mine = here.expand(indices.shape) if mine is None else mine & here
    if mine is not None:
        grad = torch.where(mine[..., None], grad, 0.0)
        position = torch.where(mine, position, 0)
    return torch.ops.aten.embedding_dense_backward(grad, position, rows, -1, False)


def index_select(s: Shards, x: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    if not s.split("d"):
        return x.index_select(dim, index)
    position, mine = s.locate("d", index)
    return torch.where(along(mine, dim, x.ndim), x.index_select(dim, position), 0)


def gather(s: Shards, x: torch.Tensor, index: torch.Tensor, dim: int, sparse_grad: bool = False) -> torch.Tensor:
    if not s.split("d"):
        return x.gather(dim, index)
    position, mine = s.locate("d", index)
    return torch.where(mine, x.gather(dim, position), 0)


def same_but(op: Op, first: int, second: int, dim: int) -> bool:
    """Whether two operands agree in all dims but one: elsewhere `gather` reads a corner of its operand."""
    a, b = op.operands[first].shape, op.operands[second].shape
    return all(n == m for i, (n, m) in enumerate(zip(a, b, strict=True)) if i != dim % max(len(a), 1))


def gather_text(op: Op) -> str:
    ndim, dim = len(op.operands[0].shape), op.literals["dim"]
    if same_but(op, 0, 1, dim):
        dims = [f"a{i}" for i in range(ndim)]
        put = lambda letter: " ".join(letter if i == dim % max(ndim, 1) else a for i, a in enumerate(dims))  # noqa: E731
        return f"{put('d')}, {put('i')} -> {put('i')}"
    wide, narrow = ([f"{c}{i}" for i in range(ndim)] for c in "DE")
    return f"{' '.join(wide)}, {' '.join(narrow)} -> {' '.join(narrow)}"


def scatter_text(op: Op) -> str:
    """Into a dim that may be split, where operand and index agree in the other dims."""
    ndim, dim = len(op.operands[0].shape), op.literals["dim"]
    by_tensor = len(op.operands) == 3
    if same_but(op, 0, 1, dim) and (not by_tensor or op.operands[1].shape == op.operands[2].shape):
        dims = [f"a{i}" for i in range(ndim)]
        put = lambda letter: " ".join(letter if i == dim % max(ndim, 1) else a for i, a in enumerate(dims))  # noqa: E731
        source = f", {put('I')}" if by_tensor else ""
        return f"{put('d')}, {put('I')}{source} -> {put('d')}"
    wide, narrow = ([f"{c}{i}" for i in range(ndim)] for c in "DE")
    source = f", {' '.join(f'F{i}' for i in range(ndim))}" if by_tensor else ""
    return f"{' '.join(wide)}, {' '.join(narrow)}{source} -> {' '.join(wide)}"


def scatter(reduce: str) -> Any:
    """Indices of other ranks go to one row more than there are, which is then cut off."""

    def run(s: Shards, x: torch.Tensor, index: torch.Tensor, src: Any = None, *, dim: int, value: Any = None) -> Any:
        op = torch.ops.aten
        put = {
            "src": lambda x, i: op.scatter.src(x, dim, i, src),
            "value": lambda x, i: op.scatter.value(x, dim, i, value),
            "add": lambda x, i: op.scatter_add(x, dim, i, src),
        }[reduce]
        if "d" not in s.plan.given:
            return put(x, index)
        position, mine = s.locate("d", index)
        rows = x.shape[dim]
        grown = torch.cat([x, torch.zeros_like(x.narrow(dim, 0, 1))], dim)
        return put(grown, torch.where(mine, position, rows)).narrow(dim, 0, rows)

    return run


def index_text(op: Op) -> str:
    """Advanced indexing: indexed dims are whole; the indices' dims stand where numpy puts them."""
    items = _index_items(op)
    ndim = len(op.operands[0].shape)
    at = [i for i, item in enumerate(items) if item]
    source = [f"D{i}" if i in at else f"d{i}" for i in range(ndim)]
    rest = [d for i, d in enumerate(source) if i not in at]
    first = at[0] if at == list(range(at[0], at[-1] + 1)) else 0
    return f"{' '.join(source)}, [*i] -> {' '.join([*rest[:first], '*i', *rest[first:]])}"


def index_put_text(op: Op) -> str:
    ndim = len(op.operands[0].shape)
    whole = " ".join(f"D{i}" for i in range(ndim)) or "."
    values = " ".join(f"V{i}" for i in range(len(op.operands[-1].shape))) or "."
    indices = [t.shape for t in op.operands[1:-1]]
    spelled = ", ".join(" ".join(f"I{k}x{i}" for i in range(len(s))) or "." for k, s in enumerate(indices))
    return f"{whole}, {spelled}, {values} -> {whole}"


def _index_items(op: Op) -> list[bool]:
    listed = next(item for item in op.form if isinstance(item, ListOf))
    return [isinstance(i, Slot) for i in listed.items]


rule("embedding", "v h, *a -> *a h", sum="v", indexes="v", linear="0", local=embedding)
rule(
    "embedding_dense_backward", "*a h, *a -> v h", sum="a", indexes="v a", linear="0", local=embedding_backward
)
rule("index_select", "*a d, i -> *a i", sum="d", indexes="d", at="dim", linear="0", local=index_select)
rule("gather", gather_text, sum="d", indexes="d", linear="0", local=gather)
rule("scatter.src", scatter_text, indexes="d", local=scatter("src"))
rule("scatter.value", scatter_text, indexes="d", local=scatter("value"))
rule("scatter_add", scatter_text, indexes="d", linear="0 2", local=scatter("add"))
rule("index.Tensor", index_text, linear="0")
rule("index_put", index_put_text)
rule("_unsafe_index_put", index_put_text)
