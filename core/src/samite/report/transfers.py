"""What stages of a pipeline hand to each other, as rows of the table of collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

from samite.hal.program import Pipeline, Program
from samite.passes.traffic import itemsize
from samite.report.functions import Function
from samite.report.traffic import CollectiveRow
from samite.runtime.pipelines import Deeds, Send

__all__ = ["transfer_rows"]


def transfer_rows(program: Program, functions: Sequence[Function]) -> Iterator[CollectiveRow]:
    """A row for every value that goes from one index of the pipeline's axis to another."""
    pipeline = program.pipeline
    if pipeline is None:
        return
    sent: Counter[tuple[int, int, int]] = Counter()
    for source, deeds in enumerate(Deeds(pipeline, program.mesh[pipeline.axis]).of):
        sent.update((deed.key.value, source, deed.target) for deed in deeds if isinstance(deed, Send))
    for (value, source, target), count in sent.items():
        shape, dtype, phase, line, uses = _described(program, pipeline, functions, value)
        yield CollectiveRow(
            verb="transfer",
            axes=(pipeline.axis,),
            count=count,
            nbytes=prod(shape) * itemsize(dtype),
            shape=shape,
            dtype=dtype,
            phase=phase,
            line=line,
            uses=uses,
            inside=(f"{pipeline.axis} {source} to {target}",),
        )


def _described(
    program: Program, pipeline: Pipeline, functions: Sequence[Function], value: int
) -> tuple[tuple[int, ...], str, str, str, tuple[str, ...]]:
    """The shape on a rank, dtype, phase and line of a value, and its name if it is state."""
    if value < len(program.arguments):
        argument = program.arguments[value]
        return argument.layout.local_shape(program.mesh), argument.dtype, "forward", "", (argument.name,)
    term = next((join.term for join in pipeline.joins if join.value == value), value)
    for part, function in zip(pipeline.programs, functions, strict=True):
        if term in part.makes:
            number = function.graph.returns[part.makes.index(term)]
            type = function.graph.types[number]
            source = next(node.source for node in function.graph.nodes if number in node.results)
            return type.shape, type.dtype, source.phase, source.line, ()
    raise AssertionError("some function makes every value that is sent")
