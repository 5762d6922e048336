"""From a captured call to a pipeline: placed, partitioned, cut into stages, and scheduled."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from samite.api.extensions import with_passes
from samite.api.pipelines import PIPELINE, PipelineOptions, inner_mesh, most_turns, refuse_placements
from samite.errors import PassMissing, ScheduleError, nearest
from samite.frontend import Capture
from samite.hal.program import Argument, Pipeline, Program, Result, StageProgram
from samite.layout import Layout
from samite.mesh import Mesh
from samite.passes.base import Pass, PassRecord
from samite.passes.constrain import Placements
from samite.timeline import Timeline
from samite.topology import Topology

if TYPE_CHECKING:
    from samite.ir.graph import Graph
    from samite.ir.module import Module
    from samite.passes.cut_stages import Stages
    from samite.passes.stages.functions import StageFunction
    from samite.schedules import Action, Simulated, Work

__all__ = ["PipelineBuilder", "Staged"]


@dataclass(frozen=True)
class Staged:
    """A program in stages, what the passes did to make it, the functions of its stages, and the loop as simulated."""

    program: Program
    records: tuple[PassRecord, ...]
    graphs: tuple[Graph, ...]
    timeline: Timeline


class PipelineBuilder:
    """Makes the program of a capture on a mesh with an axis of stages. Costs are counted on `topology`; `automatic` has
    layouts that no placement fixes chosen by them, so that a rank holds `memory` bytes at most (0: any number).
    `layouts` are those that arguments have already. Raises what `samite.api.program.build` does, and ScheduleError.
    """

    def __init__(
        self,
        capture: Capture,
        mesh: Mesh,
        placements: Placements,
        layouts: Mapping[str, Layout],
        options: PipelineOptions,
        topology: Topology,
        *,
        automatic: bool,
        memory: int,
        check: bool,
    ) -> None:
        refuse_placements(placements)
        self.capture, self.mesh, self.placements, self.options = capture, mesh, placements, options
        self.topology, self.automatic, self.memory, self.check = topology, automatic, memory, check
        self.homes = {name: dict(layout.at)[PIPELINE] for name, layout in layouts.items() if layout.at}
        self.layouts = {name: layout.unpinned() for name, layout in layouts.items()}
        self.inputs = frozenset(a.name for a in capture.arguments if a.kind == "input")

    def build(self, module: Module, name: str, passes: Sequence[Pass], keep_text: Sequence[str]) -> Staged:
        """`module` is imported for `inner_mesh(mesh)`; `passes` are for the function of each stage and phase."""
        from samite.ir.build import module_of
        from samite.ir.module import Module
        from samite.passes.pipeline import run_passes, staged_passes
        from samite.passes.placement.plain import batched
        from samite.passes.stages.joint import joint_module
        from samite.passes.stages.work import in_words, work_of
        from samite.schedules import timeline_of

        graph = module.graph
        at = frozenset(i for i, a in enumerate(graph.arguments) if a.name in self.inputs)
        batch = frozenset(batched(graph, at))
        layouts, why = self._argument_layouts(module)
        turns = self.options.microbatches or most_turns(self.mesh, self._batch_layouts(graph, batch, layouts))
        names = frozenset(graph.arguments[i].name for i in batch)
        every = with_passes([*staged_passes(layouts, names), *passes])
        behind = every.index(passes[0])
        _refuse_unknown(keep_text, every)
        keep = [[n for n in keep_text if n in _names(some)] for some in (every[:behind], every[behind:])]
        timed = module_of(graph, Module.empty(inner_mesh(self.mesh, turns)).mesh_attribute)
        local, records = run_passes(timed, every[:behind], keep[0], check=self.check)
        records = [replace(r, notes=why) if r.name == "place" else r for r in records]
        started = time.perf_counter()
        stages = self._cut(local, batch)
        count = len(stages.cuts) + 1
        work = work_of(stages.functions, count, self.mesh[PIPELINE], turns, PIPELINE, self.topology)
        kind, actions, simulated = self._schedule(work)
        drawn = timeline_of(simulated, work)
        notes = in_words(stages.functions, work, kind, simulated)
        text = joint_module(stages.functions, stages.joins, self.mesh).text() if "cut_stages" in keep_text else ""
        ops = sum(len(f.module.graph.nodes) for f in stages.functions)
        records.append(PassRecord("cut_stages", time.perf_counter() - started, ops, 0, notes, text))
        functions, more = self._finished(stages.functions, every[behind:], keep[1])
        pipeline = self._pipeline(stages, functions, kind, actions, turns)
        graphs = tuple(f.module.graph for f in functions)
        text = joint_module(functions, stages.joins, self.mesh).text()
        return Staged(self._program(name, text, local.graph, pipeline), (*records, *more), graphs, drawn)

    def _argument_layouts(self, module: Module) -> tuple[dict[str, Layout], tuple[str, ...]]:
        """As placed by the user, or by cost, of the whole batch; and what there is to say of the costs."""
        from samite.passes.constrain import Constrain, matches
        from samite.passes.hoist_invariants import HoistInvariants
        from samite.passes.normalise import Normalise
        from samite.passes.pipeline import run_passes
        from samite.passes.place import Place
        from samite.passes.placement import Automatic

        held = frozenset(n for n in self.layouts if not any(matches(n, each) for each in self.placements))
        found = None
        if self.automatic and inner_mesh(self.mesh).size > 1:
            found = Automatic(self.topology, self.inputs, self.memory, held=held)
        steps: list[Pass] = [Normalise(), HoistInvariants(), Constrain(self.placements, self.layouts)]
        module, records = run_passes(module, [*steps, Place(automatic=found)] if found else steps)
        return {a.name: Layout.parse(a.layout) for a in module.graph.arguments if a.layout}, records[-1].notes

    def _batch_layouts(self, graph: Graph, batch: frozenset[int], layouts: Mapping[str, Layout]) -> list[Layout]:
        arguments = [graph.arguments[i] for i in sorted(batch)]
        return [layouts.get(a.name, Layout.replicated(a.type.shape)) for a in arguments]

    def _cut(self, local: Module, batch: frozenset[int]) -> Stages:
        from samite.passes.cut_stages import CutStages

        names = [a.name for a in local.graph.arguments]
        state = frozenset(i for i, a in enumerate(self.capture.arguments) if a.kind == "state")
        given = {names.index(name): index for name, index in self.homes.items() if name in names}
        owners = {i: names.index(r.owner) for i, r in enumerate(self.capture.results) if r.owner in names}
        marks = self.capture.stage_marks
        stages = self._check_marks(marks) if marks else self.options.stages or self._stages
        return CutStages(self.mesh, PIPELINE, stages, self.topology, batch, state, given, owners, marks).run(local)

    def _check_marks(self, marks: Sequence[int]) -> int:
        """The stages that marks make. Raises ScheduleError if they cannot be."""
        stages, ranks = len(marks) + 1, self.mesh[PIPELINE]
        if (self.options.stages or stages) != stages or stages % ranks:
            wanted = f"{self.options.stages} stages" if self.options.stages else f"{ranks} ranks"
            raise ScheduleError(
                f"{len(marks)} marks of samite.stage() make {stages} stages, have {wanted}",
                help="a mark less than stages, and as many stages on every rank",
            )
        if marks[0] == 0 or len(set(marks)) < len(marks):
            where = "two marks of samite.stage() in one place" if marks[0] else "samite.stage() before all ops"
            raise ScheduleError(f"{where}: a stage has no op", help="call it between what two stages do")
        return stages

    @property
    def _stages(self) -> int:
        ranks = self.mesh[PIPELINE]
        return 2 * ranks if self.options.schedule == "interleaved" and ranks > 1 else ranks

    def _schedule(self, work: Work) -> tuple[str, Sequence[Action], Simulated]:
        from samite.schedules import check, choose, generate, simulate

        kind = self.options.schedule
        if kind == "auto":
            kind, actions, simulated = choose(work)
        else:
            actions = generate(kind, work)
            simulated = simulate(actions, work)
        check(actions, work)
        return kind, actions, simulated

    def _finished(
        self, functions: Sequence[StageFunction], passes: Sequence[Pass], keep_text: Sequence[str]
    ) -> tuple[list[StageFunction], list[PassRecord]]:
        """Every function after `passes`, and one record a pass."""
        from samite.passes.pipeline import run_passes

        made: list[StageFunction] = []
        records: list[list[PassRecord]] = []
        for function in functions:
            module, each = run_passes(function.module, passes, keep_text, check=self.check)
            made.append(replace(function, module=module))
            records.append(each)
        joint = [
            PassRecord(
                column[0].name,
                sum(r.seconds for r in column),
                sum(r.ops for r in column),
                sum(r.bytes_moved for r in column),
                tuple(dict.fromkeys(note for r in column for note in r.notes)),
                "\n".join(r.text for r in column if r.text),
            )
            for column in zip(*records, strict=True)
        ]
        return made, joint

    def _pipeline(
        self,
        stages: Stages,
        functions: Sequence[StageFunction],
        kind: str,
        actions: Sequence[Action],
        turns: int,
    ) -> Pipeline:
        at = {(f.stage, f.phase): number for number, f in enumerate(functions)}
        return Pipeline(
            PIPELINE,
            len(stages.cuts) + 1,
            turns,
            kind,
            tuple(self._stage_program(function) for function in functions),
            stages.joins,
            tuple((at[a.stage, a.phase], a.microbatch) for a in actions),
            stages.argument_homes,
            stages.returns,
            stages.return_homes,
        )

    def _stage_program(self, function: StageFunction) -> StageProgram:
        graph = function.module.graph
        arguments = tuple(Argument(a.name, "input", a.type.dtype, Layout.parse(a.layout)) for a in graph.arguments)
        results = tuple(
            Result(f"%{value}", graph.types[at].dtype, Layout.parse(layout))
            for value, at, layout in zip(function.makes, graph.returns, graph.return_layouts, strict=True)
        )
        program = Program(function.name, self.mesh, function.module.text(), arguments, results)
        return StageProgram(function.stage, function.phase, function.each, program, function.reads, function.makes)

    def _program(self, name: str, text: str, graph: Graph, pipeline: Pipeline) -> Program:
        arguments = tuple(
            Argument(spec.name, spec.kind, a.type.dtype, self._pinned(Layout.parse(a.layout), home))
            for spec, a, home in zip(self.capture.arguments, graph.arguments, pipeline.argument_homes, strict=True)
        )
        ends = zip(self.capture.results, graph.returns, graph.return_layouts, pipeline.return_homes, strict=True)
        results = tuple(
            Result(spec.name, graph.types[v].dtype, self._pinned(Layout.parse(text), home), spec.argument)
            for spec, v, text, home in ends
        )
        return Program(name, self.mesh, text, arguments, results, pipeline=pipeline)

    def _pinned(self, layout: Layout, home: int | None) -> Layout:
        """An axis of one rank pins nothing."""
        ranks = self.mesh[PIPELINE]
        return layout if home is None or ranks == 1 else layout.pinned({PIPELINE: home % ranks})


def _names(passes: Sequence[Pass]) -> list[str]:
    return [step.name for step in passes]


def _refuse_unknown(keep_text: Sequence[str], passes: Sequence[Pass]) -> None:
    names = ["cut_stages", *_names(passes)]
    for name in keep_text:
        if name not in names:
            raise PassMissing(f'no pass is called "{name}"', help=nearest(name, names))
