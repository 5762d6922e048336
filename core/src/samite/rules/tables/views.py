"""Ops that move or select elements and change none.

A view that keeps the order of elements only regroups factors (`view=`); the others name where each dim goes. Capital
letters are dims whose elements are picked or moved by position: they must be whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.language import rule
from samite.rules.shards import Shards


def result_shape(op: Op) -> tuple[int, ...]:
    return op.results[0].shape


def letters(op: Op) -> list[str]:
    return [f"d{i}" for i in range(len(op.operands[0].shape))]


def arrow(source: Sequence[str], *targets: Sequence[str]) -> str:
    return f"{' '.join(source) or '.'} -> {', '.join(' '.join(t) or '.' for t in targets)}"


def transpose(op: Op) -> str:
    dims = letters(op)
    moved = list(dims)
    if dims:
        i, j = op.literals["dim0"] % len(dims), op.literals["dim1"] % len(dims)
        moved[i], moved[j] = moved[j], moved[i]
    return arrow(dims, moved)


def permute(op: Op) -> str:
    dims = letters(op)
    return arrow(dims, [dims[i] for i in op.literals["dims"]])


def select(op: Op) -> str:
    dims = letters(op)
    at = op.literals["dim"] % len(dims)
    return arrow([*dims[:at], "D", *dims[at + 1 :]], [*dims[:at], *dims[at + 1 :]])


def select_backward(op: Op) -> str:
    dims = letters(op)
    at = op.literals["dim"] % (len(dims) + 1)
    return arrow(dims, [*dims[:at], "D", *dims[at:]])


def resized(op: Op) -> str:
    """Dims that keep their size are free, the others are whole: slices, pads and their gradients."""
    before, after = op.operands[0].shape, op.results[0].shape
    at = op.literals.get("dim")
    moved = {i for i, (n, m) in enumerate(zip(before, after, strict=True)) if n != m}
    if at is not None and op.literals.get("step", 1) != 1:
        moved.add(at % len(before))
    pick = lambda capital: [f"{capital}{i}" if i in moved else f"d{i}" for i in range(len(before))]  # noqa: E731
    return arrow(pick("D"), pick("E"))


def slice_scatter(op: Op) -> str:
    at = op.literals["dim"] % len(op.operands[0].shape)
    pick = lambda capital: [capital if i == at else d for i, d in enumerate(letters(op))]  # noqa: E731
    return f"{' '.join(pick('D'))}, {' '.join(pick('E'))} -> {' '.join(pick('D'))}"


def picked(*arguments: str) -> Any:
    """The dims that these arguments name are whole, all others free."""

    def spell(op: Op) -> str:
        dims = letters(op)
        for name in arguments:
            where = op.literals[name]
            for i in where if isinstance(where, list) else [where]:
                dims[i % len(dims)] = f"D{i % len(dims)}"
        return arrow(dims, dims)

    return spell


def last_two(op: Op) -> str:
    dims = letters(op)
    dims[-2:] = ["D", "E"]
    return arrow(dims, dims)


def split(op: Op) -> str:
    """Equal parts: the dim is (parts, d), and d may be split: a fused qkv splits without communication."""
    dims = letters(op)
    at = op.literals.get("dim", 0) % len(dims)
    sizes = [r.shape[at] for r in op.results]
    if len(set(sizes)) == 1:
        return arrow([*dims[:at], "(K d)", *dims[at + 1 :]], [*dims[:at], "d", *dims[at + 1 :]])
    parts = [[*dims[:at], f"P{i}", *dims[at + 1 :]] for i in range(len(sizes))]
    return arrow([*dims[:at], "D", *dims[at + 1 :]], *parts)


def unbind(op: Op) -> str:
    return select(op)


def cat(op: Op) -> str:
    dims = letters(op)
    at = op.literals.get("dim", 0) % len(dims)
    put = lambda group: " ".join([*dims[:at], group, *dims[at + 1 :]])  # noqa: E731
    if len({t.shape[at] for t in op.operands}) == 1:
        return f"[{put('d')}] -> {put('(K d)')}"
    return f"{', '.join(put(f'P{i}') for i in range(len(op.operands)))} -> {put('D')}"


def stack(op: Op) -> str:
    dims = letters(op)
    at = op.literals.get("dim", 0) % (len(dims) + 1)
    return f"[{' '.join(dims) or '.'}] -> {' '.join([*dims[:at], 'K', *dims[at:]])}"


def expand_local(s: Shards, x: torch.Tensor, **_: Any) -> torch.Tensor:
    return x.expand(s.result_shape())


def split_local(s: Shards, x: torch.Tensor, dim: int = 0, **_: Any) -> list[torch.Tensor]:
    return list(x.split([s.result_shape(i)[dim] for i in range(len(s.plan.results))], dim))


def select_backward_local(s: Shards, grad: torch.Tensor, dim: int, index: int, **_: Any) -> torch.Tensor:
    return torch.ops.aten.select_backward(grad, s.result_shape(), dim, index)


def slice_backward_local(
    s: Shards, grad: torch.Tensor, dim: int, start: int, end: int, step: int, **_: Any
) -> torch.Tensor:
    return torch.ops.aten.slice_backward(grad, s.result_shape(), dim, start, end, step)


def slice_local(
    s: Shards, x: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> torch.Tensor:
    """A slice that keeps a split dim whole would cut its shards at a global end."""
    if s.bound.op.operands[0].shape == s.bound.op.results[0].shape:
        return x.clone()
    return torch.ops.aten.slice.Tensor(x, dim, start, end, step)


VIEWS = """
    _unsafe_view _reshape_alias flatten.using_ints reshape squeeze squeeze.dim squeeze.dims unsqueeze view
"""
for name in VIEWS.split():
    rule(name, "", view=result_shape, linear="all")

rule("t", "m n -> n m", linear="all")
rule("transpose.int", transpose, linear="all")
rule("permute", permute, linear="all")
rule("expand", "*a -> *a", indexes="a", linear="all", local=expand_local)
rule("select.int", select, linear="all")
rule("select_backward", select_backward, linear="all", local=select_backward_local)
rule("slice.Tensor", resized, linear="all", local=slice_local)
rule("slice_backward", resized, linear="all", local=slice_backward_local)
rule("slice_scatter", slice_scatter, linear="all")
rule("constant_pad_nd", resized)
rule("flip", picked("dims"), linear="all")
rule("roll", picked("dims"), linear="all")
rule("tril", last_two, linear="all")
rule("triu", last_two, linear="all")
rule("split.Tensor", split, linear="all", local=split_local)
rule("split_with_sizes", split, linear="all", local=split_local)
rule("unbind.int", unbind, linear="all")
rule("cat", cat, linear="all")
rule("stack", stack, linear="all")
