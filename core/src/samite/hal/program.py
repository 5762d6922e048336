"""What a backend is given: one rank's module and its interface. Plain data, picklable."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from samite.layout import Layout
from samite.mesh import Mesh

__all__ = ["Argument", "ArgumentKind", "Program", "Result"]

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
class Program:
    """A partitioned module (MLIR text, entry function `main`, local types) with its interface.

    One module serves every rank of `mesh`: what differs is a function of `dist.axis_index`. `form` names the module
    without its integers, which `numbers` are (`samite.ir.numbers`): programs for other sizes of inputs often have one
    form, and may share an executable (`Executable.resized`). "" if that is not known.
    """

    name: str
    mesh: Mesh
    module: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    form: str = ""
    numbers: tuple[int, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Key of caches: names the module, its interface and the mesh, and nothing else."""
        whole = repr((self.mesh.axes, self.mesh.shape, self.module, self.arguments, self.results))
        return hashlib.sha256(whole.encode()).hexdigest()
