"""Programs of later calls, without running the first one.

A training step's first call creates state (the optimizer's) and so has a program of its own. Which state, and laid out
how, is known when it is compiled: it is run on workers that compute nothing, so that handles to that state are in place
and the call can be compiled again, exactly as a second call would be. No process starts, whatever the mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import torch

from samite import plugins
from samite.api import Compiled
from samite.api.program import Built
from samite.errors import InputError
from samite.hal import hookimpl
from samite.hal.engine import Engine
from samite.hal.program import Program
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.finished import Finished

__all__ = ["lower"]

_NAME = "rehearsal"


def lower(
    compiled: Compiled,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    first: bool = False,
    keep_text: tuple[str, ...] = (),
) -> Built:
    """The program of this call if it is not the first (or, with `first`, if it is), for the mesh of `compiled`.

    Otherwise than `Compiled.lower` this may leave handles in the caller's state whose values nobody has.
    """
    mesh = compiled.mesh
    plugins.hooks(mesh.backends)  # whoever lacks one is told so before there is an engine that nobody installed
    with _rehearsing():
        rehearsed = Compiled(compiled.fn, replace(mesh, engine=_NAME), compiled.placements, compiled.mode)
        rehearsed.measured = mesh
        if not first:
            rehearsed(*args, **kwargs)
        _, built = rehearsed.lower(*args, keep_text=keep_text, **kwargs)
    return replace(built, program=replace(built.program, mesh=mesh))


@contextmanager
def _rehearsing() -> Iterator[None]:
    plugins.register(_NAME, _Plugin)
    try:
        yield
    finally:
        plugins.unregister(_NAME)


class _Plugin:
    @hookimpl
    def samite_add_engines(self) -> Mapping[str, Callable[[], Engine]]:
        return {_NAME: _Engine}


class _Engine:
    max_ranks = 1 << 30

    def start(self, mesh: Mesh, options: Mapping[str, Any]) -> _Workers:
        return _Workers(mesh)


class _Workers:
    """Takes everything, computes nothing, and has nothing to give."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def load(self, program: Program, options: Mapping[str, Any]) -> int:
        return 0

    def write(self, buffer: int, value: torch.Tensor, layout: Layout) -> None:
        pass

    def read(self, buffer: int) -> NoReturn:
        raise InputError("the value of a tensor is needed to compile the call, and nothing was computed")

    def run(self, program: int, arguments: Sequence[int | torch.Tensor], results: Sequence[int]) -> Finished:
        return Finished()

    def free(self, buffers: Sequence[int]) -> None:
        pass

    def restart(self) -> None:
        pass

    def close(self) -> None:
        pass
