"""What a rank holds while a placed function runs: its arguments all the time, results until their last use, and copies
in other layouts from their first use to their last. What only the regions of control flow hold is not counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from samite.layout import Layout
from samite.passes.roofline import moves_nothing

if TYPE_CHECKING:
    from samite.passes.placement.assignment import Assignment

__all__ = ["Held", "Peak", "held", "lives", "peak"]


class Held(NamedTuple):
    """`value` in `layout` from the op of index `first` to that of `last`; `is_copy` if it is not how it was made."""

    value: int
    layout: Layout
    first: int
    last: int
    is_copy: bool


@dataclass(frozen=True)
class Peak:
    """The most bytes that a rank holds, `state` of them all the time, and the index of the op at which it does."""

    nbytes: int
    state: int
    node: int


def peak(placed: Assignment) -> Peak:
    types, nbytes = placed.graph.types, placed.costs.nbytes
    arguments = len(placed.graph.arguments)
    changes = [0] * (len(placed.graph.nodes) + 2)
    state = 0
    for each in held(placed):
        size = nbytes(types[each.value], each.layout)
        changes[each.first] += size
        changes[each.last + 1] -= size
        if each.value < arguments and not each.is_copy:
            state += size
    levels = list(accumulate(changes))
    node = max(range(len(levels)), key=levels.__getitem__)
    return Peak(levels[node], state, node)


def lives(placed: Assignment) -> list[int]:
    """For each node until which op its operands are held: itself, but if it only looks at one in another way as long as
    its result is."""
    return [until for _, until in _lives(placed)[1]]


def held(placed: Assignment) -> Iterator[Held]:
    """Everything that takes memory."""
    graph = placed.graph
    last, uses = _lives(placed)
    end = len(graph.nodes)
    yield from (Held(a, placed.layouts[a], 0, end, False) for a in range(len(graph.arguments)))
    copies: dict[tuple[int, Layout, str], tuple[int, int]] = {}
    for index, (node, (looks, until)) in enumerate(zip(graph.nodes, uses, strict=True)):
        for operand, need in zip(node.operands, placed.plans[index].needs, strict=True):
            if need is not placed.layouts[operand]:
                key = operand, need, placed.copied_for(operand, node)
                first, latest = copies.get(key, (index, index))
                copies[key] = first, max(latest, until)
        if not looks:
            for result in node.results:
                yield Held(result, placed.layouts[result], index, max(last[result], index), False)
    for (value, layout, _), (first, latest) in copies.items():
        yield Held(value, layout, first, latest, True)


def _lives(placed: Assignment) -> tuple[list[int], list[tuple[bool, int]]]:
    """For each value the op of its last use, -1 if there is none; for each node whether it only looks at its operand,
    and until which op it holds it."""
    graph = placed.graph
    end = len(graph.nodes)
    last = [-1] * len(graph.types)
    for value in graph.returns:
        last[value] = end
    uses: list[tuple[bool, int]] = []
    for index in range(end - 1, -1, -1):
        node = graph.nodes[index]
        looks = moves_nothing(node.op.name)
        until = max(index, *(last[r] for r in node.results)) if looks else index
        uses.append((looks, until))
        for operand, need in zip(node.operands, placed.plans[index].needs, strict=True):
            last[operand] = max(last[operand], until if need is placed.layouts[operand] else index)
    return last, uses[::-1]
