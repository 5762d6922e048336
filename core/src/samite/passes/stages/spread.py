"""Where ops of the loop run: the forward is cut into stages of like work, and each op of the backward is on the stage
of the forward op that it serves.

Cuts lie between two ops of the forward as the user wrote them (their numbers, which all that was made of an op keeps),
so both sides of a cut are whole lines of the program. The largest stage is as small as can be: its work, and what goes
over its borders (a dynamic program over cuts, as PipeDream's, Narayanan et al. 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from samite.errors import RuleMissing
from samite.ir.graph import Graph, Node
from samite.passes.placement.costs import flops, moves_nothing
from samite.passes.stages.turns import Turns, is_cut
from samite.passes.traffic import itemsize
from samite.topology import DeviceSpec, Topology

__all__ = ["Spread", "nbytes", "seconds", "spread"]

Phase = str


@dataclass(frozen=True)
class Spread:
    """`groups` has for every node of the loop but the cuts of values its stage and phase. `cuts` are the numbers of the
    forward ops with which stages but the first begin."""

    groups: Mapping[int, tuple[int, Phase]]
    cuts: tuple[int, ...]


def spread(
    graph: Graph,
    turns: Turns,
    stages: int,
    topology: Topology,
    axis: str,
    marks: Sequence[int] = (),
) -> Spread:
    """`marks` are numbers of forward ops with which stages begin, by the user's wish. Of fewer ops than stages the last
    stages get none."""
    loop = sorted(index for index in turns.loop if not is_cut(graph.nodes[index]))
    at = _positions(graph, loop)
    cuts = tuple(marks) or _cut(graph, loop, at, stages, topology, axis)
    stage = {index: sum(position >= cut for cut in cuts) for index, position in at.items()}
    return Spread(_phases(graph, loop, stage), cuts)


def nbytes(graph: Graph, value: int) -> int:
    type = graph.types[value]
    return prod(type.shape) * itemsize(type.dtype)


def seconds(node: Node, graph: Graph, device: DeviceSpec) -> float:
    """Of one op on a rank, by the roofline."""
    if moves_nothing(node.op.name):
        return 0.0
    traffic = sum(nbytes(graph, value) for value in (*node.operands, *node.results))
    dtype = next((t.dtype for t in node.op.results if t.dtype.startswith(("float", "bfloat"))), "float32")
    return device.latency + max(_work(node) / device.rate(dtype), traffic / device.bandwidth)


def _work(node: Node) -> float:
    if node.op.regions:
        return 0.0
    try:
        return flops(node.op)
    except RuleMissing:  # what expansions are written in needs none
        return 0.0


def _positions(graph: Graph, loop: Sequence[int]) -> dict[int, int]:
    """For every node of the loop the number of the forward op that it is, or serves. A node that says none is where its
    operands are."""
    at: dict[int, int] = {}
    made: dict[int, int] = {}  # by value
    for index in loop:
        node = graph.nodes[index]
        of_operands = [made[o] for o in node.operands if o in made]
        position = node.source.op
        if position < 0:
            position = max(of_operands, default=0)
        elif node.source.phase == "forward":  # what an op reads was there before it, whatever was merged
            position = max([position, *of_operands])
        at[index] = position
        made.update(dict.fromkeys(node.results, position))
    return at


def _cut(
    graph: Graph, loop: Sequence[int], at: Mapping[int, int], stages: int, topology: Topology, axis: str
) -> tuple[int, ...]:
    forward = [index for index in loop if graph.nodes[index].source.phase == "forward"]
    ends = max((at[index] for index in forward), default=-1) + 1
    if ends < stages:
        return tuple(min(number, ends) for number in range(1, stages))
    work, crossing = np.zeros(ends), np.zeros(ends + 1)
    for index in loop:
        work[min(at[index], ends - 1)] += seconds(graph.nodes[index], graph, topology.device)
    last = _last_uses(graph, forward, at)
    for value, (first, end) in last.items():
        crossing[first + 1 : end + 1] += nbytes(graph, value)
    over = np.array([2 * topology.cost(n, axis) if n else 0.0 for n in crossing])  # there, and its gradient back
    return _balanced(np.concatenate(([0.0], np.cumsum(work))), over, stages)


def _last_uses(graph: Graph, forward: Sequence[int], at: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Of every value of the forward where it is made, and where the forward uses it last."""
    spans = {r: (at[index], at[index]) for index in forward for r in graph.nodes[index].results}
    for index in forward:
        for operand in graph.nodes[index].operands:
            if operand in spans:
                spans[operand] = spans[operand][0], max(spans[operand][1], at[index])
    return spans


def _balanced(upto: np.ndarray, over: np.ndarray, stages: int) -> tuple[int, ...]:
    """The cuts that make the longest stage shortest. `upto[i]` is the work before position i, `over[i]` the seconds of
    what goes over a cut there."""
    ends = len(upto) - 1
    best = np.full(ends + 1, np.inf)
    best[0] = 0.0
    came: list[np.ndarray] = []
    for stage in range(stages):
        after, source = np.full(ends + 1, np.inf), np.zeros(ends + 1, int)
        for end in range(stage + 1, ends - (stages - stage - 1) + 1):
            begins = np.arange(stage, end)
            border = over[begins] + (over[end] if end < ends else 0.0)
            each = np.maximum(best[begins], upto[end] - upto[begins] + border)
            least = int(np.argmin(each))
            after[end], source[end] = each[least], begins[least]
        came.append(source)
        best = after
    cuts, end = [], ends
    for source in reversed(came):
        end = int(source[end])
        cuts.append(end)
    return tuple(sorted(cuts)[1:])


def _phases(graph: Graph, loop: Sequence[int], stage: Mapping[int, int]) -> dict[int, tuple[int, Phase]]:
    """The backward of a stage in two: what gradients depend on that leave the stage, and the rest."""
    nodes = graph.nodes
    readers: dict[int, list[int]] = {}
    backward: set[int] = set()
    made: dict[int, int] = {}
    for index in loop:
        for operand in nodes[index].operands:
            readers.setdefault(operand, []).append(index)
        after = any(made[o] in backward for o in nodes[index].operands if o in made)
        if nodes[index].source.phase == "backward" or after:
            backward.add(index)
        made.update(dict.fromkeys(nodes[index].results, index))
    leaving = [
        index
        for index in backward
        if any(stage[reader] != stage[index] for r in nodes[index].results for reader in readers.get(r, ()))
    ]
    inputs = set[int]()
    while leaving:
        index = leaving.pop()
        if index not in inputs:
            inputs.add(index)
            operands = (made[o] for o in nodes[index].operands if o in made)
            leaving.extend(o for o in operands if o in backward and stage[o] == stage[index])

    def phase(index: int) -> Phase:
        return "forward" if index not in backward else "backward_input" if index in inputs else "backward_weight"

    return {index: (stage[index], phase(index)) for index in loop}
