"""Writing the functions of stages: what each computes, what it reads of others, and what it leaves for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samite.ir.build import Builder, Value
from samite.ir.context import TensorType
from samite.ir.graph import Argument, Constant, Graph, Node, Slot
from samite.ir.module import Module
from samite.ir.regions import with_regions
from samite.ir.scan import MAIN
from samite.layout import Layout
from samite.passes.placement.costs import moves_nothing
from samite.passes.split_microbatches import MICROBATCH
from samite.passes.stages.spread import nbytes
from samite.passes.stages.turns import Turns, is_cut
from samite.schedules.flow import INDEX, Port

__all__ = ["StageFunction", "Writer", "is_trivial"]


@dataclass(frozen=True)
class StageFunction:
    """What one stage does in one phase: for each microbatch, or once. `reads` are its arguments, `makes` the values
    that its results are."""

    stage: int
    phase: str
    each: bool
    module: Module
    reads: tuple[Port, ...]
    makes: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"stage{self.stage}.{self.phase}"

    @property
    def is_looped(self) -> bool:
        """Whether it is part of the main loop."""
        return self.each and not self.phase.startswith("count")

    def nbytes(self, value: int) -> int:
        """Of a value that it makes."""
        graph = self.module.graph
        return nbytes(graph, graph.returns[self.makes.index(value)])


def is_trivial(node: Node) -> bool:
    """Whether an op is as cheap to do again as to read what it gave: it only looks at something, or makes a constant of
    one element."""
    if node.operands:
        return moves_nothing(node.op.name)
    return not any(type.shape for type in node.op.results)


class Writer:
    """`mesh` is the attribute of the functions' modules: the mesh without the axis in time, of `turns` turns."""

    def __init__(self, graph: Graph, turns: Turns, mesh: Any, count: int) -> None:
        self.graph = with_regions(graph, _of_local_types)
        self.turns, self.mesh, self.count = turns, mesh, count
        self.producers = {r: index for index, node in enumerate(graph.nodes) for r in node.results}

    def write(
        self, stage: int, phase: str, outputs: Sequence[int], inside: Callable[[int], bool], *, each: bool
    ) -> StageFunction:
        """The function that gives `outputs`, of the ops that are `inside` (by index); all others it reads."""
        nodes, reads = self._collect(outputs, inside, each)
        module = Module.empty(self.mesh)
        with Builder(module, MAIN, [self._argument(port) for port in reads]) as build:
            values: dict[Port, Value] = dict(zip(reads, build.arguments, strict=True))
            for index in nodes:
                self._emit(self.graph.nodes[index], values, build, each)
            returned = [values[self._port(v, each)] for v in outputs]
            layouts = [str(Layout.replicated(self._type(v).shape)) for v in outputs]
            build.finish(returned, layouts=layouts)
        return StageFunction(stage, phase, each, module, tuple(reads), tuple(outputs))

    def _collect(
        self, outputs: Sequence[int], inside: Callable[[int], bool], each: bool
    ) -> tuple[list[int], list[Port]]:
        nodes, reads, seen = set[int](), set[Port](), set[Port]()
        stack = [self._port(v, each) for v in outputs]
        while stack:
            port = stack.pop()
            if port in seen:
                continue
            seen.add(port)
            index = self.producers.get(port.value, -1) if port.cut < 0 else -1
            if index < 0 or port.value in self.turns.joins or not inside(index):
                reads.add(port)
                continue
            nodes.add(index)
            node = self.graph.nodes[index]
            stack.extend(self._port(o, each) for o in node.operands)
            if node.op.name == "dist.axis_index" and MICROBATCH in node.op.literals["axes"]:
                reads.add(Port(INDEX))
        return sorted(nodes), sorted(reads)

    def _port(self, value: int, each: bool) -> Port:
        """A value as it is seen from within a loop over microbatches, or from outside."""
        if not each:
            return Port(self.turns.joined.get(value, value))
        index = self.producers.get(value, -1)
        if index >= 0 and is_cut(node := self.graph.nodes[index]):
            return Port(node.operands[0], node.op.literals["dim"])
        return Port(value)

    def _emit(self, node: Node, values: dict[Port, Value], build: Builder, each: bool) -> None:
        types = [self.graph.types[r] for r in node.results]
        if node.op.name == "dist.axis_index" and MICROBATCH in node.op.literals["axes"]:
            made: Sequence[Value] = [self._index(node, types[0], values[Port(INDEX)], build)]
        else:
            made = build.op(node.op, [values[self._port(o, each)] for o in node.operands], types, node.location)
        values.update((Port(r), value) for r, value in zip(node.results, made, strict=True))

    def _index(self, node: Node, type: TensorType, turn: Value, build: Builder) -> Value:
        """A rank's index along axes of which the last is the one in time."""
        *outer, last = node.op.literals["axes"]
        assert last == MICROBATCH, "microbatches are minor to all axes of a dim"
        if not outer:
            return turn
        at = node.location
        (index,) = build.dist("dist.axis_index", [], [type], {"axes": tuple(outer)}, at)
        (index,) = build.torch("aten.mul.Scalar", (Slot(0), Constant.of(self.count)), [index], [type], at)
        return build.torch("aten.add.Tensor", (Slot(0), Slot(1), Constant.of(1)), [index, turn], [type], at)[0]

    def _argument(self, port: Port) -> Argument:
        type = self._type(port.value)
        if port.cut >= 0:
            shape = list(type.shape)
            shape[port.cut] //= self.count
            type = TensorType(tuple(shape), type.dtype)
        owner = self.graph.arguments[port.value].owner if 0 <= port.value < len(self.graph.arguments) else ""
        return Argument(type, self._name(port), str(Layout.replicated(type.shape)), owner)

    def _type(self, value: int) -> TensorType:
        if value == INDEX:
            return TensorType((), "int64")
        join = self.turns.joins.get(value)
        return self.graph.types[join.term if join is not None and join.kind == "last" else value]

    def _name(self, port: Port) -> str:
        if port.value == INDEX:
            return "microbatch"
        if port.value < len(self.graph.arguments):
            return self.graph.arguments[port.value].name
        return f"%{port.value}"


def _of_local_types(region: Graph) -> Graph:
    """A region with the layouts that functions of stages have: of what a rank holds of a microbatch, so that none
    speaks of the axis in time."""
    region = with_regions(region, _of_local_types)

    def layout(value: int) -> str:
        return str(Layout.replicated(region.types[value].shape))

    return replace(
        region,
        arguments=tuple(a._replace(layout=layout(at)) for at, a in enumerate(region.arguments)),
        return_layouts=tuple(layout(value) for value in region.returns),
    )
