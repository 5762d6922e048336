"""partition: from global types to what one rank holds. Reshards become collectives, partial sums are settled where
`place` said so, and one module serves all ranks."""

from __future__ import annotations

from collections.abc import Callable

from samite.ir.build import Builder, Value, module_of, rewrite
from samite.ir.graph import Graph, Node
from samite.ir.module import Module
from samite.ir.regions import changed_regions
from samite.layout import Layout
from samite.passes.fragments import MeshItems, local_op, local_type, reshard_graph

__all__ = ["Partition"]


class Partition:
    name = "partition"

    def run(self, module: Module) -> Module:
        """Needs a placed module: every argument and every result of an op has a layout."""
        mesh = module.mesh
        graph = module.graph
        arguments = [a._replace(type=local_type(a.type, Layout.parse(a.layout), mesh)) for a in graph.arguments]

        def body(graph: Graph, build: Builder) -> list[Value]:
            return _Partitioner(graph, build, mesh, lambda region: self._region(region, module)).run()

        return rewrite(module, body, arguments, regions=False)

    def _region(self, region: Graph, module: Module) -> Graph:
        return self.run(module_of(region, module.mesh_attribute)).graph


class _Partitioner:
    def __init__(self, graph: Graph, build: Builder, mesh: dict[str, int], region: Callable[[Graph], Graph]) -> None:
        self.graph, self.build, self.mesh, self.region = graph, build, mesh, region
        self.items: MeshItems = tuple(mesh.items())
        self.parsed: dict[str, Layout] = {}
        self.layouts = [self.layout(a.layout) for a in graph.arguments]
        self.values: list[Value] = list(build.arguments)

    def layout(self, text: str) -> Layout:
        found = self.parsed.get(text)
        if found is None:
            found = self.parsed[text] = Layout.parse(text)
        return found

    def run(self) -> list[Value]:
        for node in self.graph.nodes:
            operands = [self.values[o] for o in node.operands]
            if node.op.name == "dist.reshard":
                made = self._reshard(node, operands)
            elif node.op.name == "dist.constrain":
                made = tuple(operands)
            else:
                made = self._op(node, operands)
            self.values.extend(made)
            self.layouts.extend(self.layout(text) for text in node.layouts)
        return [self.values[r] for r in self.graph.returns]

    def _reshard(self, node: Node, operands: list[Value]) -> tuple[Value, ...]:
        src, dst = (self.layout(node.op.literals[key]) for key in ("src", "dst"))
        graph = reshard_graph(src, dst, node.op.operands[0].dtype, self.items)
        return self.build.inline(graph, operands, node.location)

    def _op(self, node: Node, operands: list[Value]) -> tuple[Value, ...]:
        if node.op.regions:
            return self._control(node, operands)
        needs = tuple(self.layouts[o] for o in node.operands)
        results = tuple(self.layout(text) for text in node.layouts)
        local = local_op(node.op, needs, results, self.items)
        for operand, graph in local.masks:
            operands[operand] = self.build.inline(graph, [operands[operand]], node.location)[0]
        if local.body is not None:
            return self.build.inline(local.body, operands, node.location)
        return self.build.op(node.op, operands, local.types, node.location)

    def _control(self, node: Node, operands: list[Value]) -> tuple[Value, ...]:
        layouts = zip(node.op.results, node.layouts, strict=True)
        types = [local_type(type, self.layout(text), self.mesh) for type, text in layouts]
        return self.build.op(changed_regions(node.op, self.region), operands, types, node.location)
