"""When ops run, once the batch is cut into microbatches: before the loop over them, in it, or after it.

A value varies if it differs from microbatch to microbatch. Collectives over the axis in time are where it ceases to:
they join the terms of all turns. What depends on a join runs after the loop. Where the loop itself needs one (the
number of tokens that count, say) that is found by a loop of its own, before; not if it depends on what is trained, for
then the model would have to run twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from samite.errors import ScheduleError
from samite.ir.graph import Graph, Node
from samite.ir.regions import all_nodes
from samite.passes.split_microbatches import MICROBATCH
from samite.passes.traffic import is_collective
from samite.schedules.flow import Join

__all__ = ["Turns", "is_cut", "turns"]


@dataclass
class Turns:
    """Nodes by their indices. `rounds` says of each value how many joins lie before it. `loop` are the nodes of the
    main loop, `early` those of what it needs to know before it (in loops of their own where they vary); all others run
    once. `joined` maps a value that varies to what it is after the loop, where nothing in the program says so."""

    varying: list[bool]
    rounds: list[int]
    joins: dict[int, Join] = field(default_factory=dict[int, Join])
    joined: dict[int, int] = field(default_factory=dict[int, int])
    loop: set[int] = field(default_factory=set[int])
    early: set[int] = field(default_factory=set[int])
    known: set[int] = field(default_factory=set[int])
    """Values of `early` that do not vary."""


def is_cut(node: Node) -> bool:
    """Whether a node is a microbatch's part of a value."""
    return node.op.name == "dist.shard" and node.op.literals["axes"] == (MICROBATCH,)


def turns(graph: Graph, mesh: Mapping[str, int], inputs: frozenset[int]) -> Turns:
    """`inputs` are the arguments of which a microbatch is a part. Raises ScheduleError for an op that needs the whole
    batch, with its line."""
    found = _varying(graph, mesh, inputs)
    producers = {r: index for index, node in enumerate(graph.nodes) for r in node.results}
    _find_early(graph, found, producers)
    _find_loop(graph, found, producers)
    return found


def _varying(graph: Graph, mesh: Mapping[str, int], inputs: frozenset[int]) -> Turns:
    found = Turns([False] * len(graph.types), [0] * len(graph.types))
    once = mesh[MICROBATCH] == 1
    behind = [False] * len(graph.types)  # what runs once, after the loop
    for node in graph.nodes:
        found.rounds[node.results[0]] = max((found.rounds[o] for o in node.operands), default=0)
        varies = any(found.varying[o] for o in node.operands)
        axes = node.op.literals.get("axes", ()) if node.op.name.startswith("dist.") else ()
        if once:  # nothing is cut, so what the loop is follows from the phases
            of_inputs = any(o in inputs for o in node.operands)
            varies = (varies or of_inputs) and node.source.phase in ("forward", "backward")
        elif MICROBATCH in axes:
            varies = not is_collective(node)
            if not varies:
                _join(node, found)
        elif any(MICROBATCH in each.op.literals.get("axes", ()) for r in node.op.regions for each in all_nodes(r)):
            raise _needs_all(node)
        updates = node.source.phase not in ("forward", "backward")
        late = any(behind[o] or (updates and (found.varying[o] or found.rounds[o])) for o in node.operands)
        if varies and any(behind[o] for o in node.operands):
            raise _needs_another_loop(node)
        for result in node.results:
            found.varying[result], found.rounds[result] = varies, found.rounds[node.results[0]]
            behind[result] = late and not varies
    if once:
        _join_last(graph, found)
    return found


def _join(node: Node, found: Turns) -> None:
    (value,), (term,) = node.results, node.operands
    literals = node.op.literals
    if literals["axes"] != (MICROBATCH,) or node.op.name not in ("dist.all_reduce", "dist.all_gather"):
        raise _needs_all(node)
    if node.op.name == "dist.all_reduce":
        found.joins[value] = Join(value, term, literals["reduce_type"])
    else:
        found.joins[value] = Join(value, term, "cat", literals["dim"])
    found.rounds[value] = found.rounds[term] + 1


def _join_last(graph: Graph, found: Turns) -> None:
    """With one microbatch what the loop leaves is what its only turn leaves."""
    readers = [o for node in graph.nodes if not found.varying[node.results[0]] for o in node.operands]
    for value in (*readers, *graph.returns):
        if found.varying[value] and value not in found.joined:
            number = found.joined[value] = len(graph.types) + len(found.joined)
            found.joins[number] = Join(number, value, "last")


def _find_early(graph: Graph, found: Turns, producers: Mapping[int, int]) -> None:
    trained = _trained(graph)
    wanted: list[int] = []
    for node in graph.nodes:
        if found.varying[node.results[0]]:
            for operand in node.operands:
                if found.rounds[operand] and not found.varying[operand]:
                    if trained[operand]:
                        raise _needs_all(node)
                    wanted.append(operand)
    while wanted:
        value = wanted.pop()
        index = producers.get(value)
        if index is not None and index not in found.early:
            found.early.add(index)
            wanted.extend(graph.nodes[index].operands)
    found.known = {r for index in found.early for r in graph.nodes[index].results if not found.varying[r]}


def _find_loop(graph: Graph, found: Turns, producers: Mapping[int, int]) -> None:
    """From what the function returns back to its arguments; what is known before the loop is where that ends."""
    wanted, seen = list(graph.returns), set[int]()
    while wanted:
        value = wanted.pop()
        index = producers.get(value)
        if index is None or index in seen or (value in found.known and found.rounds[value]):
            continue
        seen.add(index)
        wanted.extend(graph.nodes[index].operands)
        if found.varying[value]:
            found.loop.add(index)


def _trained(graph: Graph) -> list[bool]:
    """Of every value whether it depends on floating-point state that the function replaces."""
    trained = [False] * len(graph.types)
    for alias in graph.aliases:
        if alias >= 0:
            trained[alias] = graph.types[alias].dtype.startswith(("float", "bfloat", "complex"))
    for node in graph.nodes:
        depends = any(trained[o] for o in node.operands)
        for result in node.results:
            trained[result] = depends
    return trained


def _needs_another_loop(node: Node) -> ScheduleError:
    return ScheduleError(
        f"{node.op} reads what the step has updated, and the loop over microbatches runs once",
        where=node.source.line,
        help="compile a function for what comes after the update, and call it after this one",
    )


def _needs_all(node: Node) -> ScheduleError:
    return ScheduleError(
        f"{node.op} needs the whole batch, of which it is given a microbatch at a time",
        where=node.source.line,
        help="take microbatches=1, or what looks at one sample at a time (a layer norm for a batch norm)",
    )
