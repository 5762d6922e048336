"""What a backend is given: one rank's module and its interface. Plain data, picklable."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from samite.layout import Layout
from samite.mesh import Mesh
from samite.schedules.flow import Join, Port

__all__ = ["Argument", "ArgumentKind", "Pipeline", "Program", "Result", "StageProgram"]

ArgumentKind = Literal["state", "input", "scalar", "rng"]


@dataclass(frozen=True)
class Argument:
    """One argument of the entry function.

    `dtype` is torch's name ("float32"); `layout` is global, the local shape is `layout.local_shape(mesh)`, and (0,)
    on a rank that does not hold a pinned value.
    A `scalar` holds numbers of the host that are read anew at every call, replicated: 0-d (a learning rate), or 1-d
    float64 (all numbers of an optimizer's group). `rng` is the 0-d int64 step counter.
    """

    name: str
    kind: ArgumentKind
    dtype: str
    layout: Layout


@dataclass(frozen=True)
class Result:
    """One result. `alias` is the index of the state argument whose buffer it replaces (donation), or -1."""

    name: str
    dtype: str
    layout: Layout
    alias: int = -1


@dataclass(frozen=True)
class StageProgram:
    """What the ranks of one stage do in one phase, as a program of its own: it has no state, and its layouts are local.

    Its arguments are the values that it `reads`, its results those that it `makes`. It runs once for `each` microbatch,
    or once.
    """

    stage: int
    phase: str
    each: bool
    program: Program
    reads: tuple[Port, ...]
    makes: tuple[int, ...]


@dataclass(frozen=True)
class Pipeline:
    """A program in stages along `axis`; stage s is on the ranks with index s modulo the axis' size.

    Values are numbered, the program's arguments first; `argument_homes` are the stages that hold these, None where all
    do. `order` is what the loop over microbatches does, on all ranks: (index of a program, microbatch). Programs of
    phases before and after the loop run in their order. `returns` are the values of the program's results, which are
    left on the stages `return_homes`.
    """

    axis: str
    stages: int
    microbatches: int
    schedule: str
    programs: tuple[StageProgram, ...]
    joins: tuple[Join, ...]
    order: tuple[tuple[int, int], ...]
    argument_homes: tuple[int | None, ...]
    returns: tuple[int, ...]
    return_homes: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A partitioned module (MLIR text, entry function `main`, local types) with its interface.

    One module serves every rank of `mesh`: what differs is a function of `dist.axis_index`. `form` names the module
    without its integers, which `numbers` are (`samite.ir.numbers`): programs for other sizes of inputs often have one
    form, and may share an executable (`Executable.resized`). "" if that is not known.

    With a `pipeline` ranks do not all run one module: `module` is the text of all stages', and engines run those of the
    pipeline's programs that are a rank's, each of which a backend compiles as any other.
    """

    name: str
    mesh: Mesh
    module: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    form: str = ""
    numbers: tuple[int, ...] = ()
    pipeline: Pipeline | None = None

    @cached_property
    def digest(self) -> str:
        """Key of caches: names the module, its interface and the mesh, and nothing else."""
        whole = repr((self.mesh.axes, self.mesh.shape, self.module, self.arguments, self.results))
        if self.pipeline is not None:
            whole += repr((self.pipeline.order, self.pipeline.joins))
        return hashlib.sha256(whole.encode()).hexdigest()
