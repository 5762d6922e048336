"""Where state lives, and where ops run that run once: on the stage whose state they work on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samite.ir.graph import Graph
from samite.passes.stages.spread import Spread, nbytes
from samite.passes.stages.turns import Turns, is_cut

__all__ = ["Homes", "homes"]


@dataclass(frozen=True)
class Homes:
    """`of` says of every value on which stage it is once the loop is over, None for what any stage can tell. `hops`
    counts how often a value went from stage to stage since. `late` are the values that are not there before."""

    of: list[int | None]
    hops: list[int]
    late: list[bool]


def homes(
    graph: Graph, turns: Turns, spread: Spread, state: frozenset[int], given: Mapping[int, int], ranks: int
) -> Homes:
    """`state` are the arguments that live on one stage each: where the forward first reads them; what no loop reads (an
    optimizer's state) lives with its owner. What is `given` an index on the axis of `ranks` ranks stays there."""
    count = len(graph.types) + len(turns.joined)
    found = Homes([None] * count, [0] * count, [False] * count)
    _of_arguments(graph, turns, spread, state, found)
    for at, index in given.items():
        if at in state and (found.of[at] or 0) % ranks != index:
            found.of[at] = index
    made = {r: index for index, node in enumerate(graph.nodes) for r in node.results}
    for number, join in turns.joins.items():
        if number not in turns.known:
            group = spread.groups.get(made.get(join.term, -1))
            found.of[number], found.late[number] = (group[0] if group else 0), True
    for node in graph.nodes:
        if turns.varying[node.results[0]] or node.results[0] in turns.joins:
            continue
        operands = [turns.joined.get(o, o) for o in node.operands]
        at = _busiest(graph, turns, found, operands)
        hops = max((found.hops[o] + (found.of[o] not in (None, at)) for o in operands), default=0)
        for result in node.results:
            found.of[result], found.hops[result] = at, hops
            found.late[result] = any(found.late[o] for o in operands)
    return found


def _busiest(graph: Graph, turns: Turns, found: Homes, operands: list[int]) -> int | None:
    """The stage of the largest state that is read; of the largest value, if none is; of equal ones the first."""
    placed: list[tuple[bool, int, int]] = []
    for operand in operands:
        stage = found.of[operand]
        if stage is not None:
            like = operand if operand < len(graph.types) else turns.joins[operand].term
            placed.append((operand < len(graph.arguments), nbytes(graph, like), -stage))
    return -max(placed)[2] if placed else None


def _of_arguments(graph: Graph, turns: Turns, spread: Spread, state: frozenset[int], found: Homes) -> None:
    first: dict[int, int] = {}  # the stage that first reads a value which does not vary
    for index in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[index]
        if index in spread.groups:
            stage = spread.groups[index][0]
        elif is_cut(node) or index in turns.early or not turns.varying[node.results[0]]:
            stages = [first[r] for r in node.results if r in first]
            if not stages:
                continue
            stage = min(stages)
        else:
            continue
        for operand in node.operands:
            if not turns.varying[operand] or index in turns.early:
                first[operand] = min(first.get(operand, stage), stage)
    by_name = {argument.name: at for at, argument in enumerate(graph.arguments)}
    for at in sorted(state):
        owner = by_name.get(graph.arguments[at].owner, at)
        found.of[at] = first.get(at, first.get(owner))
    for at in sorted(state):
        if found.of[at] is None:
            found.of[at] = _of_readers(graph, at, found)


def _of_readers(graph: Graph, at: int, found: Homes) -> int:
    """The stage of the other state that an op reads beside this one; the first stage if there is none."""
    for node in graph.nodes:
        if at in node.operands:
            beside = [found.of[o] for o in node.operands if o < len(graph.arguments) and found.of[o] is not None]
            if beside:
                return beside[0] or 0
    return 0
