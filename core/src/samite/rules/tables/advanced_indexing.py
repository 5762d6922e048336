"""`x[i, :, j]` and what its gradient adds: indices are broadcast with each other and address several dims."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samite.ir.graph import ListOf, Op, Slot
from samite.rules.language import rule
from samite.rules.shards import Shards
from samite.rules.tables.indexing import kept


def indexed_dims(op: Op) -> list[int]:
    """The dims of the first operand that have an index."""
    listed = next(item for item in op.form if isinstance(item, ListOf))
    return [i for i, item in enumerate(listed.items) if isinstance(item, Slot)]


def dims(op: Op) -> tuple[list[str], list[str]]:
    """The dims of the operand, indexed ones "k0", "k1"; and of what is selected: the indices' dims, "*i", stand at the
    first indexed dim, or in front if other dims lie between the indexed ones."""
    at = indexed_dims(op)
    operand = [f"k{i}" if i in at else f"d{i}" for i in range(len(op.operands[0].shape))]
    rest = [d for i, d in enumerate(operand) if i not in at]
    first = at[0] if at == list(range(at[0], at[-1] + 1)) else 0
    return operand, [*rest[:first], "*i", *rest[first:]]


def index_text(op: Op) -> str:
    operand, selected = dims(op)
    return f"{' '.join(operand)}, [*i] -> {' '.join(selected)}"


def index_put_text(op: Op) -> str:
    """Where values are added up, one for each index, indices may be anywhere; else the last one in order wins, so all
    must be known, and only the dims beside them are free. Values broadcast over the selection."""
    operand, selected = dims(op)
    indices = torch.broadcast_shapes(*(t.shape for t in op.operands[1:-1]))
    sizes = dict(zip(operand, op.operands[0].shape, strict=True))
    full = [(d, n) for d in selected for n in (indices if d == "*i" else [sizes[d]])]
    values = op.operands[-1].shape
    given = list(zip(full[len(full) - len(values) :], values, strict=True))
    each = len(values) == len(full) and all(n == m for (d, n), m in given if d == "*i")
    if op.literals.get("accumulate") and each:
        term = ["*i" if d == "*i" else d if n == m else "1" for (d, n), m in given]
        at = term.index("*i")
        term = [*term[:at], "*i", *(d for d in term[at:] if d != "*i")]
    else:
        operand = [d.upper() if d[0] == "k" else d for d in operand]
        term = [f"V{i}" if d == "*i" else d if n == m else "1" for i, ((d, n), m) in enumerate(given)]
    indexed = "*i" if "*i" in term else "*I"
    return f"{' '.join(operand)}, [{indexed}], {' '.join(term) or '.'} -> {' '.join(operand)}"


def local_indices(s: Shards, indices: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """(positions on this rank, which of them are all here, or None if no indexed dim is split). Indices may be < 0."""
    found: list[torch.Tensor] = []
    here: torch.Tensor | None = None
    for dim, index in zip(indexed_dims(s.bound.op), indices, strict=True):
        letter = f"k{dim}"
        if s.split(letter):
            index = torch.where(index < 0, index + s.size(letter), index)
            index, mine = s.local_index(letter, index)
            here = mine if here is None else here & mine
        found.append(index)
    return found, here


def spread(s: Shards, indices: Sequence[torch.Tensor | None], x: torch.Tensor) -> tuple[list[torch.Tensor | None], int]:
    """(one index or None for each dim, the dim of the selection at which the indices' dims stand)."""
    at = indexed_dims(s.bound.op)
    given = iter(indices)
    spelled = [next(given) if i in at else None for i in range(x.ndim)]
    return spelled, at[0] if at == list(range(at[0], at[-1] + 1)) else 0


def over_selection(s: Shards, here: torch.Tensor, first: int, ndim: int) -> torch.Tensor:
    """A mask of the indices' dims (aligned right), shaped to broadcast over the selection."""
    after = ndim - first - len(s.letters("i"))
    return here.view([*here.shape, *[1] * after])


def index(s: Shards, x: torch.Tensor, indices: Sequence[torch.Tensor]) -> torch.Tensor:
    positions, here = local_indices(s, indices)
    spelled, first = spread(s, positions, x)
    selected = torch.ops.aten.index.Tensor(x, spelled)
    return selected if here is None else kept(over_selection(s, here, first, selected.ndim), selected)


def index_put(
    s: Shards,
    x: torch.Tensor,
    indices: Sequence[torch.Tensor],
    values: torch.Tensor,
    accumulate: bool = False,
    **_: bool,
) -> torch.Tensor:
    positions, here = local_indices(s, indices)
    spelled, first = spread(s, positions, x)
    if here is not None:
        values = kept(over_selection(s, here, first, values.ndim), values)
    return torch.ops.aten.index_put(x, spelled, values, accumulate)


INDEXED = " ".join(f"k{i}" for i in range(16))

for name in ("index.Tensor", "_unsafe_index.Tensor"):
    rule(name, index_text, sum=INDEXED, indexes=INDEXED, linear="0", increasing="0", padding={1: 0}, local=index)
for name in ("index_put", "_unsafe_index_put.hacked_twin"):
    rule(name, index_put_text, sum="i", indexes=INDEXED, linear="0 2", padding={1: 0}, local=index_put)
