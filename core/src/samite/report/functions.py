"""The functions of a program: one, or those of a pipeline's stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samite.hal.program import Pipeline, Program
from samite.ir.graph import Graph
from samite.ir.module import Module

__all__ = ["Function", "functions_of"]


@dataclass(frozen=True)
class Function:
    """`graph` runs `times` a call. `arguments` maps the program's arguments, as far as the function reads them, to its
    own, `results` the program's results that it makes to its values. `stage` is -1 if all ranks run it."""

    graph: Graph
    arguments: Mapping[int, int]
    results: Mapping[int, int]
    times: int = 1
    stage: int = -1


def functions_of(program: Program) -> tuple[Function, ...]:
    """In the order of stages."""
    if program.pipeline is not None:
        return _of_stages(program.pipeline)
    graph = Module.parse(program.module).graph
    return (Function(graph, {i: i for i in range(len(graph.arguments))}, dict(enumerate(graph.returns))),)


def _of_stages(pipeline: Pipeline) -> tuple[Function, ...]:
    found: list[Function] = []
    for part in pipeline.programs:
        graph = Module.parse(part.program.module).graph
        made = dict(zip(part.makes, graph.returns, strict=True))
        read = {port.value: at for at, port in enumerate(part.reads)}
        arguments = {value: at for value, at in read.items() if 0 <= value < len(pipeline.argument_homes)}
        results = {at: made[value] for at, value in enumerate(pipeline.returns) if value in made}
        times = pipeline.microbatches if part.each else 1
        found.append(Function(graph, arguments, results, times, part.stage))
    return tuple(found)
