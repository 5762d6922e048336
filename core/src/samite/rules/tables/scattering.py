"""Ops that write rows or elements where an index says.

Several may go to one place. Where they are added up, or the largest counts, they may come from anywhere, and the index
may be split; else their order counts, and it is whole. Where the addressed dim is split, what goes to other ranks goes
to one row more than there are, which is then cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.language import rule
from samite.rules.shards import Shards, along
from samite.rules.tables.indexing import kept, lines, rows, spell

REDUCED = {"sum": "s", "amax": "m", "amin": "w"}
"""The letter of the index' dim, by how what goes to one place is reduced; it is whole for all other ways."""


def index_letter(op: Op) -> str:
    """If the old value does not count, nobody knows whether another rank has overwritten it."""
    return REDUCED.get(op.literals["reduce"], "I") if op.literals.get("include_self", True) else "I"


def adds_up(op: Op) -> str:
    return "0 2" if index_letter(op) == "s" else ""


def written(
    s: Shards,
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    write: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """`write(x, index)` of what this rank has of the addressed dim, "d"."""
    if not s.split("d"):
        return write(x, index)
    position, mine = s.local_index("d", index)
    count = x.shape[dim]
    grown = torch.cat([x, torch.zeros_like(x.narrow(dim, 0, 1))], dim)
    return write(grown, torch.where(mine, position, count)).narrow(dim, 0, count).contiguous()


# ---- rows ----------------------------------------------------------------------------------------


def index_add(
    s: Shards, x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *, dim: int, alpha: float = 1
) -> torch.Tensor:
    if s.split("d"):
        index, mine = s.local_index("d", index)
        source = kept(along(mine, dim, x.ndim), source)
    return torch.ops.aten.index_add(x, dim, index, source, alpha=alpha)


def index_copy(s: Shards, x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *, dim: int) -> torch.Tensor:
    return written(s, x, dim, index, lambda x, index: torch.ops.aten.index_copy(x, dim, index, source))


def index_fill(s: Shards, x: torch.Tensor, index: torch.Tensor, value: Any = None, **literals: Any) -> torch.Tensor:
    """Indices may count from the end."""
    dim, filling = literals["dim"], literals.get("value", value)
    if s.split("d"):
        index = torch.where(index < 0, index + s.size("d"), index)
    return written(s, x, dim, index, lambda x, index: torch.ops.aten.index_fill(x, dim, index, filling))


def index_reduce_text(op: Op) -> str:
    letter = index_letter(op)
    return rows(f"*a d, {letter}, *a {letter} -> *a d")(op)


def index_reduce(
    s: Shards, x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *, dim: int, **literals: Any
) -> torch.Tensor:
    return written(s, x, dim, index, lambda x, index: torch.ops.aten.index_reduce(x, dim, index, source, **literals))


rule(
    "index_add",
    rows("*a d, i, *a i -> *a d"),
    sum="i",
    indexes="d",
    at="dim",
    linear="0 2",
    padding={1: 0},
    local=index_add,
)
rule("index_copy", rows("*a d, I, *a I -> *a d"), indexes="d", at="dim", linear="0 2", local=index_copy)
rule("index_fill.int_Scalar", rows("*a d, I -> *a d"), indexes="d", at="dim", local=index_fill)
rule("index_fill.int_Tensor", rows("*a d, I, . -> *a d"), indexes="d", at="dim", local=index_fill)
rule(
    "index_reduce",
    index_reduce_text,
    max="m",
    min="w",
    indexes="d",
    at="dim",
    padding={1: 0},
    local=index_reduce,
)


# ---- elements ------------------------------------------------------------------------------------


def scatter_text(letter: Callable[[Op], str]) -> Callable[[Op], str]:
    """`letter` gives that of the index' dim. The source may be larger than the index, which is then a corner of it."""

    def spell_call(op: Op) -> str:
        operand, index = lines(op)
        index = [letter(op) if d == "i" else d for d in index]
        source = ""
        if len(op.operands) == 3:
            fits = op.operands[1].shape == op.operands[2].shape
            source = f", {spell(index if fits else [f'S{i}' for i in range(len(index))])}"
            if not fits:
                operand, index = ([d.upper() if d != "d" else d for d in dims] for dims in (operand, index))
        return f"{spell(operand)}, {spell(index)}{source} -> {spell(operand)}"

    spell_call.__name__ = "scatter_text"
    return spell_call


def scatter(s: Shards, x: torch.Tensor, index: torch.Tensor, src: Any = None, **literals: Any) -> torch.Tensor:
    dim, value = literals["dim"], literals.get("value")

    def write(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        if src is None:
            return torch.ops.aten.scatter.value(x, dim, index, value)
        return torch.ops.aten.scatter.src(x, dim, index, src)

    return written(s, x, dim, index, write)


def scatter_add(s: Shards, x: torch.Tensor, index: torch.Tensor, src: torch.Tensor, *, dim: int) -> torch.Tensor:
    if s.split("d"):
        index, mine = s.local_index("d", index)
        # The source may be larger than the index.
        src = kept(mine, src[tuple(slice(n) for n in index.shape)])
    return torch.ops.aten.scatter_add(x, dim, index, src)


def scatter_reduce(
    s: Shards, x: torch.Tensor, index: torch.Tensor, src: torch.Tensor, *, dim: int, **literals: Any
) -> torch.Tensor:
    return written(s, x, dim, index, lambda x, index: torch.ops.aten.scatter_reduce(x, dim, index, src, **literals))


INDEXED: Mapping[str, Any] = {"indexes": "d", "padding": {1: 0}}

rule("scatter.src", scatter_text(lambda op: "I"), local=scatter, **INDEXED)
rule("scatter.value", scatter_text(lambda op: "I"), local=scatter, **INDEXED)
rule("scatter_add", scatter_text(lambda op: "i"), sum="i", linear="0 2", local=scatter_add, **INDEXED)
rule(
    "scatter_reduce.two",
    scatter_text(index_letter),
    sum="s",
    max="m",
    min="w",
    linear=adds_up,
    local=scatter_reduce,
    **INDEXED,
)
