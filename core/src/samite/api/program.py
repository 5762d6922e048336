"""From a captured call to a program: import, passes, interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samite.api.pipelines import PIPELINE, PipelineOptions, inner_mesh
from samite.api.staging import PipelineBuilder
from samite.frontend import Capture
from samite.hal.program import Argument, Program, Result
from samite.layout import Layout
from samite.mesh import Mesh
from samite.passes.base import PassRecord
from samite.passes.constrain import Placements, matches
from samite.timeline import Timeline
from samite.topology import Topology

if TYPE_CHECKING:
    from samite.ir.module import Module
    from samite.passes.pipeline import Overlapping

__all__ = ["Built", "build"]


@dataclass(frozen=True)
class Built:
    """A program, and what the passes did to make it. `timeline` is that of a pipeline's loop over microbatches."""

    program: Program
    records: tuple[PassRecord, ...]
    timeline: Timeline | None = None


def build(
    capture: Capture,
    mesh: Mesh,
    placements: Placements,
    *,
    name: str,
    bucket_bytes: int,
    layouts: Mapping[str, Layout] | None = None,
    keep_text: Sequence[str] = (),
    check: bool = False,
    overlap: Overlapping = "auto",
    topology: Topology | None = None,
    automatic: bool = False,
    memory: int = 0,
    compare: bool = False,
    pipeline: PipelineOptions | None = None,
) -> Built:
    """Raises PlacementError, RuleMissing, LayoutError, VerifyError, each with the user's line where an op is to blame,
    and UnsupportedOp for an op that the mesh's backend declines.

    `layouts` are those that arguments have already; the user's placements are stronger, and only a pipeline takes what
    is pinned where it is. With `check` the module is verified after every pass. The `topology` says how to communicate,
    and whether beside computation; with `overlap` that is wherever it can be. If placement is `automatic`, layouts that
    no placement fixes are chosen by what they cost there, so that a rank holds no more than `memory` bytes (0: any
    number); with `compare` more ways are priced, to be told of. `pipeline` says how, where the mesh has an axis "pp".
    """
    from samite.api.extensions import load_rules, with_passes
    from samite.api.support import check_support
    from samite.ir.importer import import_graph
    from samite.passes.pipeline import collector_paused, first_passes, function_passes, run_passes
    from samite.passes.placement import Automatic
    from samite.plugins import driver

    load_rules(mesh.backends)
    with collector_paused():
        module = import_graph(
            capture.graph.graph,
            arguments=[(a.name, a.owner) for a in capture.arguments],
            aliases=[r.argument for r in capture.results],
            mesh=inner_mesh(mesh) if PIPELINE in mesh else mesh,
        )
        there = layouts or {}
        algorithms = () if mesh.engine == "lockstep" else driver(mesh.backends[0]).algorithms
        ends = function_passes(bucket_bytes, overlap=overlap, topology=topology, memory=memory, algorithms=algorithms)
        if PIPELINE in mesh:
            options, topology = pipeline or PipelineOptions(), topology or Topology()
            chosen: dict[str, Any] = {"automatic": automatic, "memory": memory, "check": check}
            builder = PipelineBuilder(capture, mesh, placements, there, options, topology, **chosen)
            staged = builder.build(module, name, ends, keep_text)
            program, records, graphs, drawn = staged.program, staged.records, staged.graphs, staged.timeline
        else:
            by_cost = None
            if topology is not None and automatic:
                inputs = frozenset(a.name for a in capture.arguments if a.kind == "input")
                held = frozenset(each for each in there if not any(matches(each, known) for known in placements))
                by_cost = Automatic(topology, inputs, memory, compare, held)
            there = {each: layout.unpinned() for each, layout in there.items()}
            passes = with_passes([*first_passes(placements, there, automatic=by_cost), *ends])
            module, records = run_passes(module, passes, keep_text, check=check)
            program, graphs, drawn = _program(name, mesh, capture, module), [module.graph], None
        for graph in graphs if mesh.engine != "lockstep" else ():  # which interprets, whatever the backend
            check_support(graph, mesh)
        return Built(program, tuple(records), drawn)


def _program(name: str, mesh: Mesh, capture: Capture, module: Module) -> Program:
    from samite.ir.numbers import form_and_numbers

    graph = module.graph
    arguments = tuple(
        Argument(spec.name, spec.kind, a.type.dtype, Layout.parse(a.layout))
        for spec, a in zip(capture.arguments, graph.arguments, strict=True)
    )
    results = tuple(
        Result(spec.name, graph.types[value].dtype, Layout.parse(layout), spec.argument)
        for spec, value, layout in zip(capture.results, graph.returns, graph.return_layouts, strict=True)
    )
    return Program(name, mesh, module.text(), arguments, results, *form_and_numbers(graph))
