"""Ops that move elements and change none. Those that keep the order of elements only regroup factors (`view=`); the
others name where each dim goes. What cuts dims is in slices.py, what selects from them in selections.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.expansions import moves
from samite.rules.language import rule
from samite.rules.shards import Shards

VIEWS = """
    _unsafe_view _reshape_alias flatten.using_ints reshape squeeze squeeze.dim squeeze.dims unflatten.int unsqueeze view
"""


MOVES: Mapping[str, str] = {"linear": "all", "increasing": "all"}
"""Options of ops that move elements, or fill in constants: whatever is owed stays owed."""


def result_shape(op: Op) -> tuple[int, ...]:
    return op.results[0].shape


def dims_of(op: Op) -> list[str]:
    """A letter for each dim of the first operand."""
    return [f"d{i}" for i in range(len(op.operands[0].shape))]


def arrow(source: Sequence[str], *targets: Sequence[str]) -> str:
    return f"{' '.join(source) or '.'} -> {', '.join(' '.join(t) or '.' for t in targets)}"


def reverse(op: Op) -> str:
    dims = dims_of(op)
    return arrow(dims, dims[::-1])


def transpose(op: Op) -> str:
    dims = dims_of(op)
    moved = list(dims)
    if dims:
        i, j = op.literals["dim0"], op.literals["dim1"]
        moved[i], moved[j] = moved[j], moved[i]
    return arrow(dims, moved)


def permute(op: Op) -> str:
    dims = dims_of(op)
    return arrow(dims, [dims[i] for i in op.literals["dims"]])


def whole(argument: str) -> Callable[[Op], str]:
    """The dims that this argument names are whole (all, if it names none), the others free."""

    def spell(op: Op) -> str:
        dims = dims_of(op)
        for i in op.literals[argument] or range(len(dims)):
            dims[i] = dims[i].upper()
        return arrow(dims, dims)

    spell.__name__ = "whole"
    return spell


def roll(op: Op) -> str:
    """Without dims it is the flattened tensor that rolls."""
    dims, rolled = dims_of(op), [d % max(len(op.operands[0].shape), 1) for d in op.literals["dims"]]
    if not rolled or len(set(rolled)) < len(rolled) or 0 in op.operands[0].shape:
        return arrow(*[[d.upper() for d in dims]] * 2)
    before, after = ([f"{c}{i}" if i in rolled else d for i, d in enumerate(dims)] for c in "xy")
    return arrow(before, after)


def repeat(op: Op) -> str:
    """Copies stand major to the dim; dims in front have copies alone."""
    dims, repeats = dims_of(op), op.literals["repeats"]
    new = len(repeats) - len(dims)
    copied = [f"(K{i} {dim})" if n != 1 else dim for i, (dim, n) in enumerate(zip(dims, repeats[new:], strict=True))]
    return arrow(dims, [*(f"N{i}" for i in range(new)), *copied])


def expand_local(s: Shards, x: torch.Tensor, **_: Any) -> torch.Tensor:
    return x.expand(s.result_shape())


def triangle(upper: bool) -> Callable[..., torch.Tensor]:
    """What is kept is a matter of global rows and columns."""

    def local(s: Shards, x: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
        offset = s.positions("n") - s.positions("m")[:, None]
        return torch.where(offset >= diagonal if upper else offset <= diagonal, x, torch.zeros((), dtype=x.dtype))

    return local


for name in VIEWS.split():
    rule(name, view=result_shape)
rule("t", reverse, **MOVES)
rule("transpose.int", transpose, **MOVES)
rule("permute", permute, **MOVES)
rule("expand", "*a -> *a", indexes="a", **MOVES, local=expand_local)
rule("repeat", repeat, **MOVES)
rule("flip", whole("dims"), **MOVES)
rule(
    "roll",
    roll,
    **MOVES,
    window=" | ".join(f"x{i} y{i}" for i in range(8)),
    expand={f"x{i}": moves.roll for i in range(8)},
)
rule("tril", "*a m n -> *a m n", **MOVES, local=triangle(upper=False))
rule("triu", "*a m n -> *a m n", **MOVES, local=triangle(upper=True))
