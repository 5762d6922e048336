"""Ops that cut a dim into parts, or join parts to one.

Where all cuts are multiples of a unit, the dim is (K d) with d the unit, and d may be split: so a fused qkv weight laid
out as "(3 h:tp)" splits without communication, and so do heads cut by groups. Cuts at any other place slide the dim
after over the one before, and ranks fetch what has moved over the edges of their shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.expansions import moves
from samite.rules.language import rule
from samite.rules.shards import Shards
from samite.rules.tables.views import MOVES, arrow, dims_of

PARTS = [f"x{i}" for i in range(64)]
"""The letters of the dims of several tensors, or of several dims of one, that are cut or joined."""
OVER = " | ".join(f"x{i} y{i}" for i in range(8))


def unit(sizes: Sequence[int]) -> int:
    """The largest piece that all sizes are multiples of."""
    return gcd(*sizes)


def pieces(size: int, each: int, letter: str) -> str:
    """A dim of `size` made of pieces of `each`: "d", "(K d=4)", or "K" if there are none larger than an element."""
    if each <= 1:
        return letter
    return "d" if size == each else f"({letter} d={each})"


def put(dims: Sequence[str], at: int, group: str) -> list[str]:
    return [group if i == at else d for i, d in enumerate(dims)]


def at_dim(op: Op, ndim: int) -> int:
    return op.literals.get("dim", 0) % ndim


# ---- split, cat, stack ---------------------------------------------------------------------------


def split(op: Op) -> str:
    dims = dims_of(op)
    at = at_dim(op, len(dims))
    sizes = [r.shape[at] for r in op.results]
    each = unit(sizes)
    parts = [put(dims, at, pieces(n, each, f"P{i}")) for i, n in enumerate(sizes)]
    return arrow(put(dims, at, pieces(sum(sizes), each, "K")), *parts)


def split_local(s: Shards, x: torch.Tensor, dim: int = 0, **_: Any) -> list[torch.Tensor]:
    return list(x.split([s.result_shape(i)[dim] for i in range(len(s.plan.results))], dim))


def cat(op: Op) -> str:
    ndim = len(op.results[0].shape)
    dims = [f"d{i}" for i in range(ndim)]
    at = at_dim(op, ndim)
    # torch lets an empty 1-d tensor be joined to any others
    sizes = [t.shape[at] if len(t.shape) == ndim else 0 for t in op.operands]
    each = unit(sizes)
    before, after = ("P", "K") if each > 1 else ("x", "y")
    parts = [
        " ".join(put(dims, at, pieces(n, each, f"{before if n else 'P'}{i}")) if len(t.shape) == ndim else [f"P{i}"])
        for i, (n, t) in enumerate(zip(sizes, op.operands, strict=True))
    ]
    return f"{', '.join(parts)} -> {' '.join(put(dims, at, pieces(sum(sizes), each, after)))}"


def stack(op: Op) -> str:
    dims = dims_of(op)
    at = at_dim(op, len(dims) + 1)
    return f"[{' '.join(dims) or '.'}] -> {' '.join([*dims[:at], 'K', *dims[at:]])}"


def unbind(op: Op) -> str:
    dims = dims_of(op)
    at = at_dim(op, len(dims))
    return arrow(put(dims, at, "D"), [d for i, d in enumerate(dims) if i != at])


# ---- slices --------------------------------------------------------------------------------------


def bounds(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """Python's rules for a slice of step 1."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


def cut(op: Op, wide: Sequence[int], dims: Sequence[str]) -> tuple[str, str]:
    """(the dim before, and after the slice) of a tensor of shape `wide`."""
    at = at_dim(op, len(wide))
    size, literals = wide[at], op.literals
    first, last = bounds(literals.get("start"), literals.get("end"), size)
    step = literals.get("step", 1)
    if last - first == size and step == 1:
        return dims[at], dims[at]
    each = unit([size, first, last])
    if last == first:
        return "K", "P"
    return ("x", "y") if step != 1 or each == 1 else (pieces(size, each, "K"), pieces(last - first, each, "P"))


def slice_text(op: Op) -> str:
    dims = dims_of(op)
    at = at_dim(op, len(dims))
    before, after = cut(op, op.operands[0].shape, dims)
    return arrow(put(dims, at, before), put(dims, at, after))


def slice_backward_text(op: Op) -> str:
    dims = dims_of(op)
    at = at_dim(op, len(dims))
    before, after = cut(op, op.results[0].shape, dims)
    return arrow(put(dims, at, after), put(dims, at, before))


def slice_scatter_text(op: Op) -> str:
    dims = dims_of(op)
    at = at_dim(op, len(dims))
    before, after = (" ".join(put(dims, at, group)) for group in cut(op, op.operands[0].shape, dims))
    return f"{before}, {after} -> {before}"


def local_bounds(s: Shards, shape: Sequence[int], dim: int, start: int | None, end: int | None) -> tuple[int, int]:
    """The slice of a shard: the same pieces, each of its local size. `shape` is global."""
    first, last = bounds(start, end, shape[dim])
    whole = s.bound.op.literals.get("step", 1) != 1  # then the dim is, and other dims may be split
    if last - first == shape[dim] and not whole:
        return 0, s.result_shape()[dim]
    if whole or not s.split("d"):
        return first, last
    each, local = s.size("d"), s.local_size("d")
    return first // each * local, last // each * local


def slice_local(
    s: Shards, x: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> torch.Tensor:
    first, last = local_bounds(s, s.bound.op.operands[0].shape, dim, start, end)
    return torch.ops.aten.slice.Tensor(x, dim, first, last, step)


def slice_backward_local(
    s: Shards, grad: torch.Tensor, *, dim: int, start: int, end: int, step: int, **_: Any
) -> torch.Tensor:
    first, last = local_bounds(s, s.bound.op.results[0].shape, dim, start, end)
    return torch.ops.aten.slice_backward(grad, s.result_shape(), dim, first, last, step)


def slice_scatter_local(
    s: Shards,
    x: torch.Tensor,
    src: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> torch.Tensor:
    first, last = local_bounds(s, s.bound.op.operands[0].shape, dim, start, end)
    return torch.ops.aten.slice_scatter(x, src, dim, first, last, step)


def pad(op: Op) -> str:
    dims = dims_of(op)
    count = len(op.literals["pad"]) // 2
    padded = {len(dims) - 1 - i for i in range(count) if any(op.literals["pad"][2 * i : 2 * i + 2])}
    empty = 0 in op.operands[0].shape or 0 in op.results[0].shape
    before, after = ([f"{c}{i}" if i in padded else d for i, d in enumerate(dims)] for c in ("KP" if empty else "xy"))
    return arrow(before, after)


def pads_zero(op: Op) -> str:
    return "all" if op.literals.get("value", 0) == 0 else ""


rule("split.Tensor", split, **MOVES, local=split_local)
rule("split_with_sizes", split, **MOVES, local=split_local)
rule("cat", cat, **MOVES, window=f"y {' '.join(PARTS)}", expand=dict.fromkeys(PARTS, moves.cat))
rule("stack", stack, **MOVES)
rule("unbind.int", unbind, **MOVES)
for name, text, local, fetched in (
    ("slice.Tensor", slice_text, slice_local, moves.slice_forward),
    ("slice_backward", slice_backward_text, slice_backward_local, moves.slice_backward),
    ("slice_scatter", slice_scatter_text, slice_scatter_local, moves.slice_scatter),
):
    rule(name, text, **MOVES, local=local, window="x y", expand={"x": fetched})
rule(
    "constant_pad_nd", pad, linear=pads_zero, increasing="all", window=OVER, expand=dict.fromkeys(PARTS[:8], moves.pad)
)
