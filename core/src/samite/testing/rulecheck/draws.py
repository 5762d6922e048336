"""Combinations of layouts of an op's operands, and of those that are wished for its results."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from samite.ir.graph import Op
from samite.layout import Layout
from samite.mesh import Mesh
from samite.testing.rulecheck.placements import layouts_of

__all__ = ["Placed", "draw"]


@dataclass(frozen=True)
class Placed:
    """Layouts of the operands, and those that are wished for the results."""

    have: tuple[Layout, ...]
    wish: tuple[Layout | None, ...]

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.have))} -> {', '.join(str(w) if w else 'any' for w in self.wish)}"


def draw(op: Op, mesh: Mesh, limit: int, chance: random.Random) -> Iterator[Placed]:
    """All of them; or, if they are more than `limit`, so many: half with one operand or result laid out, as far as
    there are such, the others random."""
    operands = [layouts_of(t, mesh) for t in op.operands]
    results = [(None, *layouts_of(t, mesh, owed=False)[1:]) for t in op.results]
    options: list[Sequence[Layout | None]] = [*operands, *results]

    def placed(drawn: Sequence[Layout | None]) -> Placed:
        have = drawn[: len(operands)]
        return Placed(tuple(layout for layout in have if layout is not None), tuple(drawn[len(operands) :]))

    if prod(map(len, options)) <= limit:
        yield from map(placed, product(*options))
        return
    first = [choices[0] for choices in options]
    singles = [(i, layout) for i, choices in enumerate(options) for layout in choices[1:]]
    chance.shuffle(singles)
    singles = singles[: max(limit // 2, 1)]
    for i, layout in singles:
        yield placed([*first[:i], layout, *first[i + 1 :]])
    for _ in range(limit - len(singles)):
        drawn: list[Layout | None] = [chance.choice(choices) for choices in operands]
        yield placed(drawn + [chance.choice(c) if chance.random() < 0.3 else None for c in results])
