"""hoist_invariants: what is the same in every iteration of a scan is computed once, neither stacked nor sliced; results
that nobody uses go.

Autograd hands its backward scan what the forward one computed in each iteration, and so a weight that was only
transposed, as often as there are iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from samite.ir.build import Builder, Value, module_of, rewrite
from samite.ir.context import TensorType
from samite.ir.graph import Constant, Graph, ListOf, Node, Slot
from samite.ir.module import Module
from samite.ir.regions import all_nodes, split_operands
from samite.passes.dead_code import live

__all__ = ["HoistInvariants"]

_SCAN = "dist.scan"


class HoistInvariants:
    name = "hoist_invariants"

    def run(self, module: Module) -> Module:
        if all(node.op.name != _SCAN for node in all_nodes(module.graph)):
            return module
        mesh = module.mesh_attribute
        hoisted = rewrite(module, lambda graph, build: _Hoister(graph, build, mesh).run())
        return rewrite(hoisted, _living)


def _living(graph: Graph, build: Builder) -> list[Value]:
    return build.inline_all(graph, live(graph))


class _Hoister:
    """`same` are values that are one value, stacked."""

    def __init__(self, graph: Graph, build: Builder, mesh: Any) -> None:
        self.graph, self.build, self.mesh = graph, build, mesh
        self.users = graph.users()
        self.values: list[Value] = list(build.arguments)
        self.same: dict[int, Value] = {}

    def run(self) -> list[Value]:
        for node in self.graph.nodes:
            if node.op.name == _SCAN:
                self.values.extend(self._scan(node))
                continue
            if node.op.name == "aten.flip" and list(node.op.literals["dims"]) == [0] and node.operands[0] in self.same:
                self.same[node.results[0]] = self.same[node.operands[0]]
            operands = [self.values[o] for o in node.operands]
            self.values.extend(self.build.op(node.op, operands, node.op.results, node.location, node.layouts))
        return [self.values[r] for r in self.graph.returns]

    def _scan(self, node: Node) -> list[Value]:
        (body,) = node.op.regions
        carried, sliced, others = split_operands(node.op, range(len(node.operands)))
        moved = [at for at in sliced if node.operands[at] in self.same][: len(sliced) - 1]  # one says how many
        sliced = [at for at in sliced if at not in moved]
        order = [*carried, *sliced, *others, *moved]
        given: dict[int, Value] = {at: self.values[node.operands[at]] for at in order}
        given |= {at: self.same[node.operands[at]] for at in moved}
        invariant = _invariant(body, [*others, *moved])
        count = len(carried)
        out = [i for i, value in enumerate(body.returns) if i >= count and value in invariant]
        used = [i < count or bool(self.users[result]) for i, result in enumerate(node.results)]
        kept = [i for i in range(len(body.returns)) if used[i] and i not in out]
        results: list[Value] = [None] * len(body.returns)
        if kept:
            region = _reordered(body, order, [body.returns[i] for i in kept])
            region = rewrite(module_of(region, self.mesh), _living, regions=False).graph
            attributes, types = {"carried": count, "sliced": len(sliced)}, [node.op.results[i] for i in kept]
            operands = [given[at] for at in order]
            made = self.build.dist(_SCAN, operands, types, attributes, node.location, (), [region])
            for i, value in zip(kept, made, strict=True):
                results[i] = value
        alone = self._computed(body, given, [body.returns[i] for i in out])
        for i, value in zip(out, alone, strict=True):
            results[i] = self._stacked(value, node.op.results[i], node.location)
            self.same[node.results[i]] = value
        return results

    def _computed(self, body: Graph, given: dict[int, Value], wanted: Sequence[int]) -> list[Value]:
        """Values of a body that need no iteration, computed before it."""
        values = dict(given)
        for node, needed in zip(body.nodes, live(replace(body, returns=tuple(wanted))), strict=True):
            if needed:
                operands = [values[o] for o in node.operands]
                made = self.build.op(node.op, operands, node.op.results, node.location, node.layouts)
                values.update(zip(node.results, made, strict=True))
        return [values[value] for value in wanted]

    def _stacked(self, value: Value, type: TensorType, location: Any) -> Value:
        one = TensorType((1, *type.shape[1:]), type.dtype)
        (row,) = self.build.torch("aten.unsqueeze", (Slot(0), Constant.of(0)), [value], [one], location)
        shape = ListOf("!torch.list<int>", tuple(Constant.of(n) for n in type.shape))
        return self.build.torch("aten.expand", (Slot(0), shape, Constant.of(False)), [row], [type], location)[0]


def _invariant(body: Graph, arguments: Sequence[int]) -> set[int]:
    """The values of a body that depend on no others than these of its arguments."""
    found = set(arguments)
    for node in body.nodes:
        if found.issuperset(node.operands):
            found.update(node.results)
    return found


def _reordered(body: Graph, order: Sequence[int], returns: Sequence[int]) -> Graph:
    """The body with its arguments in another order, and other returns."""
    numbers = list(range(len(body.types)))
    for new, old in enumerate(order):
        numbers[old] = new
    nodes = [replace(node, operands=tuple(numbers[o] for o in node.operands)) for node in body.nodes]
    return replace(
        body,
        arguments=tuple(body.arguments[old] for old in order),
        nodes=nodes,
        returns=tuple(numbers[value] for value in returns),
        aliases=(-1,) * len(returns),
        types=[body.types[old] for old in order] + body.types[len(order) :],
        return_layouts=("",) * len(returns),
    )
