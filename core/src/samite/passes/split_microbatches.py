"""split_microbatches: the batch is cut along `mb`, an axis of the mesh that is no device but a turn of a loop.

Inputs keep their layouts; what the function does with them it does with their parts, which a `dist.constrain` says.
From there `place` carries the axis through the graph as it does any other. It is minor to all axes of the batch dim, so
a rank's microbatches are stretches of what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from samite.errors import InputError
from samite.ir.build import Builder, Value, rewrite
from samite.ir.graph import Argument, Graph
from samite.ir.module import Module
from samite.layout import Factor, Layout

__all__ = ["MICROBATCH", "SplitMicrobatches"]

MICROBATCH = "mb"
"""The axis in time. Its size is the number of microbatches."""


class SplitMicrobatches:
    """`inputs` are the names of arguments that have the batch as dim 0. Raises InputError if the number of microbatches
    does not divide what a rank holds of it."""

    name = "split_microbatches"

    def __init__(self, inputs: frozenset[str]) -> None:
        self.inputs = inputs

    def run(self, module: Module) -> Module:
        mesh = module.mesh
        arguments = module.graph.arguments
        inputs = self.inputs if mesh[MICROBATCH] > 1 else ()
        wanted = {i: self._layout(a, mesh) for i, a in enumerate(arguments) if a.name in inputs}
        return rewrite(module, lambda graph, build: _split(graph, build, wanted), regions=False)

    def _layout(self, argument: Argument, mesh: Mapping[str, int]) -> str:
        shape = argument.type.shape
        layout = Layout.parse(argument.layout) if argument.layout else Layout.replicated(shape)
        (first, *minor), *rest = layout.dims
        parts, turns = prod(mesh[axis] for axis in first.axes), mesh[MICROBATCH]
        if first.size % (parts * turns):
            most = max(n for n in range(1, turns) if first.size % (parts * n) == 0) if first.size % parts == 0 else 0
            raise InputError(
                f"{argument.name}: {turns} microbatches do not divide its {first.size} rows"
                + (f", of which each of {parts} ranks holds its part" if parts > 1 else ""),
                help=f"take microbatches={most}" if most else f"make the batch a multiple of {parts * turns}",
            )
        dims = ((Factor(first.size, (*first.axes, MICROBATCH)), *minor), *rest)
        return str(Layout(dims, layout.kind, layout.owed))


def _split(graph: Graph, build: Builder, wanted: Mapping[int, str]) -> list[Value]:
    values: dict[int, Value] = dict(enumerate(build.arguments))
    for index, layout in wanted.items():
        type = graph.arguments[index].type
        # Its source is the first op that reads it.
        at = next((node.location for node in graph.nodes if index in node.operands), None)
        (values[index],) = build.dist("dist.constrain", [values[index]], [type], {"layout": layout}, at)
    for node in graph.nodes:
        types = [graph.types[r] for r in node.results]
        made = build.op(node.op, [values[o] for o in node.operands], types, node.location)
        values.update(zip(node.results, made, strict=True))
    return [values[r] for r in graph.returns]
