"""Which ops of a function are alike: the layers of a model are, and are placed alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from samite.ir.graph import Graph

__all__ = ["Classes", "alike"]

RADIUS = 4
"""How many ops away two ops may differ and still be alike. It keeps the two linears of an MLP apart, whose uses differ
first behind their activation, and makes one layer of all inner ones."""

MOST = 800
"""Classes from which on the program would take minutes: then ops are alike that differ a little."""

MANY = 8
"""Operands from which on an op (a concatenation, a list of norms) does not tell them apart by their position."""


@dataclass(frozen=True)
class Classes:
    """The number of each argument's and of each node's class; classes are numbered by their first member, the arguments
    before the nodes. `first` has that member: an argument, or a node counted behind them."""

    of: tuple[int, ...]
    first: tuple[int, ...]
    sizes: tuple[int, ...]


def alike(graph: Graph, marks: Sequence[Hashable]) -> Classes:
    """Colour refinement (Weisfeiler & Leman 1968) over ops, types and phases: `RADIUS` rounds of it, or as many as give
    `MOST` classes. `marks` tell apart arguments that are alike otherwise."""
    arguments = len(graph.arguments)
    colours: list[int] = _numbered(
        [
            *(("argument", a.type, mark) for a, mark in zip(graph.arguments, marks, strict=True)),
            *(("op", id(node.op), node.source.phase) for node in graph.nodes),
        ]
    )
    made_by = {a: (a, 0) for a in range(arguments)}
    made_by |= {r: (arguments + i, k) for i, node in enumerate(graph.nodes) for k, r in enumerate(node.results)}
    edges: list[tuple[int, int, int, int]] = []  # from, its result, to, its operand
    for i, node in enumerate(graph.nodes):
        many = len(node.operands) > MANY
        edges += [(*made_by[o], arguments + i, -1 if many else k) for k, o in enumerate(node.operands)]
    for value, alias in zip(graph.returns, graph.aliases, strict=True):
        if alias >= 0:
            edges.append((*made_by[value], alias, -2))
    for _ in range(RADIUS):
        around: list[Counter[tuple[int, ...]]] = [Counter() for _ in colours]
        for source, result, target, operand in edges:
            around[target][0, colours[source], result, operand] += 1
            around[source][1, colours[target], result, operand] += 1
        finer = _numbered([(c, frozenset(near.items())) for c, near in zip(colours, around, strict=True)])
        if max(finer, default=0) >= MOST:
            break
        colours = finer
    first: dict[int, int] = {}
    for member, colour in enumerate(colours):
        first.setdefault(colour, member)
    counts = Counter(colours)
    return Classes(tuple(colours), tuple(first.values()), tuple(counts[c] for c in first))


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    """Equal keys get equal numbers, by first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
