"""Ops that take some elements of a dim by their place: one index, windows, diagonals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.expansions import moves
from samite.rules.language import rule
from samite.rules.shards import Shards, along
from samite.rules.tables.slices import at_dim, put
from samite.rules.tables.views import MOVES, arrow, dims_of


def select(op: Op) -> str:
    dims = dims_of(op)
    at = at_dim(op, len(dims))
    return arrow(put(dims, at, "k"), [d for i, d in enumerate(dims) if i != at])


def select_backward(op: Op) -> str:
    dims = dims_of(op)
    at = at_dim(op, len(dims) + 1)
    return arrow(dims, [*dims[:at], "k", *dims[at:]])


def select_local(s: Shards, x: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """The rank that has the index gives its slice, all others zeros."""
    if not s.split("k"):
        return torch.ops.aten.select.int(x, dim, index)
    position, mine = s.local_index("k", torch.full((1,), index % s.size("k"), dtype=torch.int64))
    return torch.where(mine.view(()), x.index_select(dim, position).squeeze(dim), torch.zeros((), dtype=x.dtype))


def select_backward_local(s: Shards, grad: torch.Tensor, *, dim: int, index: int, **_: Any) -> torch.Tensor:
    if not s.split("k"):
        return torch.ops.aten.select_backward(grad, s.result_shape(), dim, index)
    grad = grad.unsqueeze(dim)
    here = along(s.positions("k") == index % s.size("k"), dim, grad.ndim)
    return torch.where(here, grad, torch.zeros((), dtype=grad.dtype))


def select_scatter(op: Op) -> str:
    dims = dims_of(op)
    at = at_dim(op, len(dims))
    whole = " ".join(put(dims, at, "k"))
    return f"{whole}, {' '.join(d for i, d in enumerate(dims) if i != at) or '.'} -> {whole}"


def select_scatter_local(s: Shards, x: torch.Tensor, src: torch.Tensor, *, dim: int, index: int) -> torch.Tensor:
    if not s.split("k"):
        return torch.ops.aten.select_scatter(x, src, dim, index)
    here = along(s.positions("k") == index % s.size("k"), dim, x.ndim)
    return torch.where(here, src.unsqueeze(dim), x)


def unfold(op: Op) -> str:
    """Windows overlap: those of one rank read what the next one has."""
    dims = dims_of(op)
    if not dims:
        return ". -> W"
    at = op.literals["dimension"] % len(dims)
    return arrow(put(dims, at, "x"), [*put(dims, at, "y"), "W"])


def unfold_backward(op: Op) -> str:
    dims = dims_of(op)[:-1]
    if not dims:
        return "W -> ."
    at = op.literals["dim"] % len(dims)
    return arrow([*put(dims, at, "y"), "W"], put(dims, at, "x"))


def diagonal(op: Op) -> str:
    dims = dims_of(op)
    for name in ("dim1", "dim2"):
        at = op.literals[name] % len(dims)
        dims = put(dims, at, dims[at].upper())
    return arrow(dims, [*(d for d in dims if d.islower()), "P"])


def diagonal_backward(op: Op) -> str:
    ndim = len(op.results[0].shape)
    at = sorted(op.literals[name] % ndim for name in ("dim1", "dim2"))
    free = [f"d{i}" for i in range(ndim - 2)]
    wide = list(free)
    for i, letter in zip(at, "DE", strict=True):
        wide.insert(i, letter)
    return arrow([*free, "P"], wide)


def diagonal_scatter(op: Op) -> str:
    wide, narrow = diagonal_backward(op).split(" -> ")[::-1]
    return f"{wide}, {narrow} -> {wide}"


def resized_backward(op: str) -> Callable[..., torch.Tensor]:
    def local(s: Shards, grad: torch.Tensor, **literals: Any) -> torch.Tensor:
        return getattr(torch.ops.aten, op)(grad, **{**literals, "input_sizes": s.result_shape()})

    return local


rule("select.int", select, sum="k", indexes="k", **MOVES, local=select_local)
rule("select_backward", select_backward, indexes="k", **MOVES, local=select_backward_local)
rule("select_scatter", select_scatter, indexes="k", **MOVES, local=select_scatter_local)
rule("unfold", unfold, **MOVES, window="x y", expand={"x": moves.unfold})
rule(
    "unfold_backward",
    unfold_backward,
    linear="all",
    local=resized_backward("unfold_backward"),
    window="x y",
    expand={"x": moves.unfold_backward},
)
rule("diagonal", diagonal, **MOVES)
rule("diagonal_copy", diagonal, **MOVES)
rule("diagonal_backward", diagonal_backward, **MOVES, local=resized_backward("diagonal_backward"))
rule("diagonal_scatter", diagonal_scatter, **MOVES)
rule("trace", "M N -> .", linear="all")
