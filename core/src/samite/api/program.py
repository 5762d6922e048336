"""From a captured call to a program: import, passes, interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samite.frontend import Capture
from samite.hal.program import Argument, Program, Result
from samite.layout import Layout
from samite.mesh import Mesh
from samite.passes.base import PassRecord
from samite.passes.constrain import Placements, matches
from samite.topology import Topology

if TYPE_CHECKING:
    from samite.ir.module import Module
    from samite.passes.pipeline import Overlapping

__all__ = ["Built", "build"]


@dataclass(frozen=True)
class Built:
    """A program, and what the passes did to make it."""

    program: Program
    records: tuple[PassRecord, ...]


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
) -> Built:
    """Raises PlacementError, RuleMissing, LayoutError, VerifyError, each with the user's line where an op is to blame,
    and UnsupportedOp for an op that the mesh's backend declines.

    `layouts` are those that arguments have already; the user's placements are stronger. With `check` the module is
    verified after every pass. The `topology` says how to communicate, and whether beside computation; with `overlap`
    that is wherever it can be. If placement is `automatic`, layouts that no placement fixes are chosen by what they
    cost there, so that a rank holds no more than `memory` bytes (0: any number); with `compare` more ways are priced,
    to be told of.
    """
    from samite.api.extensions import load_rules, with_passes
    from samite.api.support import check_support
    from samite.ir.importer import import_graph
    from samite.passes.pipeline import collector_paused, default_passes, run_passes
    from samite.passes.placement import Automatic
    from samite.plugins import driver

    load_rules(mesh.backends)
    with collector_paused():
        module = import_graph(
            capture.graph.graph,
            arguments=[(a.name, a.owner) for a in capture.arguments],
            aliases=[r.argument for r in capture.results],
            mesh=mesh,
        )
        chosen = None
        if topology is not None and automatic:
            inputs = frozenset(a.name for a in capture.arguments if a.kind == "input")
            held = frozenset(name for name in layouts or () if not any(matches(name, each) for each in placements))
            chosen = Automatic(topology, inputs, memory, compare, held)
        defaults = default_passes(
            placements,
            layouts or {},
            bucket_bytes,
            overlap=overlap,
            automatic=chosen,
            topology=topology,
            memory=memory,
            algorithms=() if mesh.engine == "lockstep" else driver(mesh.backends[0]).algorithms,
        )
        passes = with_passes(defaults)
        module, records = run_passes(module, passes, keep_text, check=check)
        if mesh.engine != "lockstep":  # which interprets, whatever the backend
            check_support(module.graph, mesh)
        return Built(_program(name, mesh, capture, module), tuple(records))


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
