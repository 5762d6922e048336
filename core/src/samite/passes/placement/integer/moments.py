"""What is held at one point of a program, in terms of classes."""

from __future__ import annotations

from collections import Counter

from samite.passes.placement.assignment import Assignment
from samite.passes.placement.integer.classes import Classes
from samite.passes.placement.integer.options import Edge, Source, makers
from samite.passes.placement.integer.program import Moment
from samite.passes.placement.memory import held, lives

__all__ = ["moment"]


def moment(at: Assignment, classes: Classes, node: int) -> Moment:
    """At the op of index `node`. A copy is held from the first of the value's users to the last, whoever shares it."""
    graph = at.graph
    made_by = makers(graph, classes)
    values: Counter[Source] = Counter()
    for each in held(at):
        if not each.is_copy and each.first <= node <= each.last:
            values[made_by[each.value]] += 1
    until = lives(at)
    spans: dict[tuple[int, str], list[int]] = {}
    for index, user in enumerate(graph.nodes):
        for operand in user.operands:
            spans.setdefault((operand, at.copied_for(operand, user)), []).extend((index, until[index]))
    copies: Counter[Edge] = Counter()
    for index, user in enumerate(graph.nodes):
        for k, operand in enumerate(user.operands):
            span = spans[operand, at.copied_for(operand, user)]
            if min(span) <= node <= max(span):
                copies[Edge(made_by[operand], classes.of[len(graph.arguments) + index], k)] += 1
    return Moment(values, copies)
