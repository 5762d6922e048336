"""Recorded calls as one program: their placed functions one after the other, partitioned together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from samite.hal.program import Argument, Program, Result
from samite.ir.build import Builder, Value
from samite.ir.context import TensorType, context
from samite.ir.graph import Argument as Parameter
from samite.ir.graph import Graph
from samite.ir.module import Module
from samite.layout import Layout
from samite.mesh import Mesh

__all__ = ["Entry", "Recorded", "segment_program"]


class Entry(NamedTuple):
    """A value that a segment takes in."""

    type: TensorType
    layout: Layout


class Recorded(NamedTuple):
    """A placed function over values of the segment, by number; `line` is the user's."""

    graph: Graph
    operands: tuple[int, ...]
    line: str


def segment_program(
    mesh: Mesh, entries: Sequence[Entry], calls: Sequence[Recorded], results: Sequence[tuple[int, Layout]]
) -> Program:
    """Values are numbered: the entries, then what each call gives, in order. `results` are kept, and how they lie."""
    from samite.passes.bucket_collectives import BucketCollectives
    from samite.passes.fuse_collectives import FuseCollectives
    from samite.passes.partition import Partition
    from samite.passes.verify import Verify

    module = Module.empty(_mesh_attribute(mesh))
    parameters = [Parameter(e.type, f"x{i}", str(e.layout)) for i, e in enumerate(entries)]
    types = [e.type for e in entries]
    with Builder(module, "main", parameters) as build:
        values: list[Value] = list(build.arguments)
        for call in calls:
            values += _inline(build, call, values)
            types += [call.graph.types[r] for r in call.graph.returns]
        build.finish([values[v] for v, _ in results], layouts=[str(layout) for _, layout in results])
    for step in (Partition(), FuseCollectives(), BucketCollectives(), Verify()):
        module = step.run(module)
    arguments = tuple(Argument(f"x{i}", "input", e.type.dtype, e.layout) for i, e in enumerate(entries))
    made = tuple(Result(f"y{i}", types[v].dtype, layout) for i, (v, layout) in enumerate(results))
    return Program("eager ops", mesh, module.text(), arguments, made)


def _inline(build: Builder, call: Recorded, known: Sequence[Value]) -> list[Value]:
    graph, location = call.graph, _location(call.line)
    values: list[Value] = [known[o] for o in call.operands]
    for node in graph.nodes:
        types = [graph.types[r] for r in node.results]
        values += build.op(node.op, [values[o] for o in node.operands], types, location, node.layouts)
    return [values[r] for r in graph.returns]


def _location(line: str) -> Any:
    from torch_mlir import ir

    file, _, number = line.rpartition(":")
    if not number.isdigit():
        return ir.Location.unknown(context())
    return ir.Location.file(file, int(number), 0, context())


def _mesh_attribute(mesh: Mapping[str, int]) -> Any:
    from samite.ir.dialect import mesh_attribute

    with context():
        return mesh_attribute(mesh)
