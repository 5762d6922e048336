"""`samite.compile`: a function over plain PyTorch objects becomes programs on a mesh, one per structure of its call."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable
from typing import Any, Literal, cast, overload

import torch

from samite.api.checks import check_arguments, check_function, check_options, refuse_dynamo
from samite.api.mesh import mesh as make_mesh
from samite.api.pipelines import PIPELINE, PipelineOptions
from samite.api.program import Built, build
from samite.api.programs import Compilation, Programs
from samite.api.step import Step
from samite.api.tied import untied
from samite.api.topology import configured_topology
from samite.errors import InputError, SamiteError
from samite.frontend import Capture, StateTree, Trees, capture
from samite.frontend.constraining import capturing
from samite.layout import Layout
from samite.mesh import Mesh
from samite.passes.constrain import Placements
from samite.runtime.session import session_of
from samite.tensor import Tensor
from samite.tensor.styles import Styled, expanded

__all__ = ["Compiled", "compile"]

log = logging.getLogger("samite")

Function = Callable[..., Any]

MANY = 8
"""Programs of one function from which on another is worth a warning: every call may be compiling."""


class Compiled:
    """A compiled function. Call it as the original; `lower` shows the program of a call without running it."""

    def __init__(
        self,
        fn: Function,
        mesh: Mesh,
        placements: Placements,
        mode: str | None,
        dynamic: bool | None = None,
        pipeline: PipelineOptions | None = None,
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self.fn, self.mesh, self.placements, self.mode = fn, mesh, placements, mode
        self.dynamic, self.pipeline = dynamic, pipeline or PipelineOptions()
        self.measured = mesh  # whose topology placements are for
        self._trees = Trees(fn)
        self._programs: dict[Hashable, Programs] = {}
        self._made: list[Compilation] = []
        self._calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if capturing():  # of another compiled function, of which this is a part then
            self._warn_placements()
            return self.fn(*args, **kwargs)
        refuse_dynamo(self.name)
        tree, key = self._trees.of(args, kwargs)
        programs = self._programs.get(key)
        step = None if programs is None else programs.steps.get(tree.sizes)
        if step is None:
            step = self._compile(tree, key)
        self._calls += 1
        return step.run(tree, torch.initial_seed() + self._calls - 1)

    # torch.compile does not look into it, and so comes to `_refuse_dynamo`.
    __call__._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess]
    __call__._torchdynamo_disable_msg = "samite compiles it"  # pyright: ignore[reportFunctionMemberAccess]

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        """How each program so far was made, in order."""
        return tuple(self._made)

    def lower(self, *args: Any, keep_text: tuple[str, ...] = (), **kwargs: Any) -> tuple[Capture, Built]:
        """Capture a call and run the passes; nothing is executed. `keep_text` names passes whose module to keep."""
        tree = StateTree.from_call(self.fn, args, kwargs)
        captured = capture(self.fn, tree=tree)
        return captured, self._build(tree, captured, keep_text, compare=True)

    def _compile(self, tree: StateTree, key: Hashable) -> Step:
        programs = self._programs.get(key)
        captures = sum(made.origin != "instance" for made in self._made)
        if captures >= MANY and not (programs and programs.holds(tree.sizes)):
            log.warning(
                "%s: compiling program number %d: calls differ in shapes, in Python values, or in hyper-parameters "
                "that are compiled in (of optimizers other than SGD, Adam and AdamW all but the learning rate)",
                self.name,
                captures + 1,
            )
        elif self._made and programs is None:
            log.info("%s: compiling again, the call has another structure", self.name)
        check_arguments(tree, self.mesh)
        programs = programs or Programs(self.name, self.dynamic, self._step, self._made)
        try:
            step = programs.make(tree)
        except Exception as error:
            self._blame_inputs(error, tree)
            raise
        self._programs[self._trees.key_after(tree, step.capture.read, step.capture.places)] = programs
        return step

    def _warn_placements(self) -> None:
        if self.placements:
            log.warning(
                "%s: its placements do not count inside of another compiled function: give them there, or by "
                "samite.constrain",
                self.name,
            )

    def _step(self, tree: StateTree, captured: Capture) -> Step:
        return Step(captured, self._build(tree, captured, ()), session_of(self.mesh), self._mode())

    def _build(self, tree: StateTree, captured: Capture, keep_text: tuple[str, ...], *, compare: bool = False) -> Built:
        from samite.config import Settings

        settings = Settings()
        rest: Any = self.placements.get("*", {} if self.placements else "auto")
        placements = {name: each for name, each in self.placements.items() if name != "*" or rest != "auto"}
        built = build(
            captured,
            self.mesh,
            untied(expanded(placements, tree.modules, self.mesh)[0], tree),
            name=self.name,
            bucket_bytes=int(settings.bucket_bytes),
            layouts=_current_layouts(tree, self.mesh),
            keep_text=keep_text,
            check=settings.debug_checks,
            overlap=settings.overlap,
            topology=configured_topology(self.measured) if self.mesh.size > 1 or PIPELINE in self.mesh else None,
            automatic=rest == "auto",
            memory=int(settings.memory_per_rank),
            compare=compare,
            pipeline=self.pipeline,
        )
        for how in (note for record in built.records if record.name == "place" for note in record.notes[:1]):
            if how.startswith("not split") and not self._made:
                log.warning("%s: each rank of %s computes everything: %s", self.name, self.mesh, how)
            else:
                log.info("%s: placed by cost on %s: %s", self.name, self.mesh, how)
        for how in (note for record in built.records if record.name == "cut_stages" for note in record.notes[:1]):
            log.info("%s: %s", self.name, how)
        return built

    def _mode(self) -> str:
        from samite.config import Settings

        return self.mode or Settings().mode

    def _blame_inputs(self, error: Exception, tree: StateTree) -> None:
        """Raise InputError if an argument differs from those of the calls before: then it is the likely cause."""
        from samite.frontend.source import line_of_traceback

        what, where = (error.what, error.where) if isinstance(error, SamiteError) else (str(error), "")
        for step in (step for programs in self._programs.values() for step in programs.steps.values()):
            for spec in step.capture.arguments:
                given = tree.leaf(spec.name).get() if spec.kind == "input" and spec.name in tree.by_name else None
                if given is None or (tuple(given.shape), given.dtype) == (spec.shape, spec.dtype):
                    continue
                now, before = f"{tuple(given.shape)} {given.dtype}", f"{spec.shape} {spec.dtype}"
                raise InputError(
                    f"{spec.name} is {now}, earlier calls had {before}: {what}",
                    where=where or line_of_traceback(error.__traceback__),
                    help=f"pass {spec.name} as before, or mend the line",
                ) from error


def _current_layouts(tree: StateTree, mesh: Mesh) -> dict[str, Layout]:
    """Layouts of the arguments that lie on this mesh already: a second program takes them as they are."""
    found: dict[str, Layout] = {}
    session = session_of(mesh)
    for leaf in tree.leaves:
        value = leaf.get()
        if isinstance(value, Tensor) and value.is_base_on(session) and value.remote.on_workers:
            found[leaf.name] = value.remote.layout
    return found


@overload
def compile(fn: Function, /) -> Compiled: ...
@overload
def compile(
    fn: Function,
    /,
    *,
    mesh: Mesh | None = None,
    placements: Styled | Literal["auto"] = "auto",
    mode: Literal["aten", "inductor"] | None = None,
    dynamic: bool | None = None,
    microbatches: int | None = None,
    schedule: str = "auto",
    stages: int | None = None,
) -> Compiled: ...
@overload
def compile(
    *,
    mesh: Mesh | None = None,
    placements: Styled | Literal["auto"] = "auto",
    mode: Literal["aten", "inductor"] | None = None,
    dynamic: bool | None = None,
    microbatches: int | None = None,
    schedule: str = "auto",
    stages: int | None = None,
) -> Callable[[Function], Compiled]: ...
def compile(
    fn: Function | None = None,
    /,
    *,
    mesh: Mesh | None = None,
    placements: Styled | Literal["auto"] = "auto",
    mode: Literal["aten", "inductor"] | None = None,
    dynamic: bool | None = None,
    microbatches: int | None = None,
    schedule: str = "auto",
    stages: int | None = None,
) -> Compiled | Callable[[Function], Compiled]:
    """Compile a function (a whole training step, a forward, a module) for a mesh; also a decorator.

    `mesh` is where it runs, by default one device. `placements` says how arguments are laid out, by name or pattern:
    {"tokens": {"dp": Shard(0)}, "model.blocks.*.up.weight": {"tp": Shard(0)}}, or, of modules, by torch's parallel
    styles: {"model.blocks.*.up": ColwiseParallel()}. What it leaves open, and everything between, follows by least
    communication; with {"*": "auto"} beside it, and by default, it is chosen by cost: time, and memory if
    `memory_per_rank` limits it. `mode` is how the backend executes, by default as configured.

    The first call of each structure (dtypes, non-tensor arguments, optimizer state that is there) compiles, and so does
    the first call with other sizes of inputs. `dynamic` says how: None captures the function once more, with symbols
    for the sizes that changed, and makes programs for all further sizes from that graph; True has symbols for all sizes
    from the first call on; False captures it for each size. Sizes 0 and 1, and sizes for which the function takes
    another way, are captured on their own. `compilations` of the compiled function says what happened.

    Where the mesh has an axis "pp" the function becomes a pipeline of `stages` along it, by default one a rank, between
    which `samite.stage()` may say where to cut. The batch (dim 0 of inputs) is cut into `microbatches`, by default as
    many as divide it, up to four a rank; their gradients are summed, so the step is that of the whole batch. `schedule`
    is "gpipe", "1f1b", "interleaved", "zero_bubble", or "auto": the fastest of them in simulation.

    Afterwards parameters, buffers, gradients and optimizer state are `samite.Tensor` handles, and so is what the
    function returns.

    Raises InputError for what is no function, MeshError, PlacementError and ConfigError for options that are wrong.
    """
    check_options(mesh, placements, mode, dynamic)
    pipeline = PipelineOptions(microbatches, schedule, stages)
    pipeline.check(mesh)
    constraints = cast(Placements, {} if placements == "auto" else placements)

    def compiled(fn: Function) -> Compiled:
        check_function(fn)
        return Compiled(fn, mesh or make_mesh(engine="inprocess", d=1), constraints, mode, dynamic, pipeline)

    return compiled if fn is None else compiled(fn)
