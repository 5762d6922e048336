"""Local programs written by hand as torch functions, for tests of what runs programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from samite.hal.program import Argument, Program, Result
from samite.ir.importer import import_graph
from samite.ir.numbers import form_and_numbers
from samite.layout import Factor, Layout
from samite.mesh import Mesh

__all__ = ["argument", "collective", "program", "split", "traced"]

collective = torch.ops.samite


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    """A function over local tensors as FX of aten ops; only the shapes and dtypes of `inputs` matter."""
    with FakeTensorMode() as mode, torch.no_grad():
        fakes = [mode.from_tensor(x) for x in inputs]
        return make_fx(lambda *xs: function(*xs), tracing_mode="real")(*fakes)


def split(*sizes: int, **axes: int) -> Layout:
    """A layout of these sizes; `tp=0` splits dim 0 over axis tp."""
    return Layout(
        tuple((Factor(n, tuple(axis for axis, dim in axes.items() if dim == d)),) for d, n in enumerate(sizes))
    )


def argument(name: str, layout: Layout, kind: str = "input", dtype: str = "float32") -> Argument:
    return Argument(name, kind, dtype, layout)  # type: ignore[arg-type]


def program(
    function: Callable[..., Any],
    arguments: Sequence[Argument],
    results: Sequence[Result],
    mesh: Mesh,
    name: str = "step",
) -> Program:
    """The program of a function over *local* tensors that returns a tuple, with this interface."""
    inputs = [torch.empty(a.layout.local_shape(mesh), dtype=getattr(torch, a.dtype)) for a in arguments]
    module = import_graph(traced(function, *inputs).graph, mesh=mesh)
    return Program(name, mesh, str(module), tuple(arguments), tuple(results), *form_and_numbers(module.graph))
