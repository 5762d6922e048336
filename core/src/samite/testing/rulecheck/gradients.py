"""Gradients: an op's forward and backward, traced together as a training step has them, compiled and run on shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from samite.errors import SamiteError
from samite.ir.build import Builder
from samite.ir.graph import Argument, Graph, overload
from samite.ir.importer import import_graph
from samite.ir.module import Module
from samite.layout import Layout
from samite.lowering import graph_to_fx
from samite.mesh import Mesh
from samite.passes.pipeline import default_passes, run_passes
from samite.runtime.interpreter import generate, run_lockstep
from samite.testing.rulecheck.placements import scatter
from samite.testing.rulecheck.sample import replace_tensors, tensors_of
from samite.testing.rulecheck.trial import difference

__all__ = ["Gradient", "gradient_of"]


class Gradient:
    """The forward and backward of one call as a graph over its tensors and a cotangent for each floating result."""

    def __init__(self, function: Callable[..., tuple[torch.Tensor, ...]], inputs: Sequence[torch.Tensor]) -> None:
        self.inputs = list(inputs)
        self.expected = [x.detach() for x in function(*inputs)]
        self.graph = _trace(function, inputs)

    def run(self, layouts: Sequence[Layout], mesh: Mesh, generator: torch.Generator) -> str:
        """What is wrong if the inputs are laid out so, "" if nothing is. A program's arguments owe nothing."""
        try:
            module = _placed(self.graph, layouts, mesh)
            local, _ = run_passes(module, default_passes({}, {}, bucket_bytes=1 << 20))
            code = generate(graph_to_fx(local.graph, mesh), "gradient")
            mains = [code.bind(mesh, rank) for rank in range(mesh.size)]
            # `place` may factor a layout anew.
            given = [Layout.parse(a.layout) for a in local.graph.arguments]
            columns = [scatter(x, layout, mesh, generator) for x, layout in zip(self.inputs, given, strict=True)]
            with torch.no_grad():
                ranks = [[column[rank] for column in columns] for rank in range(mesh.size)]
                outputs = run_lockstep(mains, ranks, mesh, code)
        except SamiteError as error:
            return f"{type(error).__name__}: {error.what}"
        results = [Layout.parse(text) for text in local.graph.return_layouts]
        eps = max(torch.finfo(x.dtype).eps for x in self.inputs if x.is_floating_point() or x.is_complex())
        return difference(outputs, results, self.expected, mesh, eps=eps)


def gradient_of(op: str, args: Sequence[Any], kwargs: dict[str, Any], generator: torch.Generator) -> Gradient | None:
    """The gradient of a call, or None if it has none or torch has not written it."""
    tensors = tensors_of(args, kwargs)
    learned = [i for i, x in enumerate(tensors) if x.is_floating_point() or x.is_complex()]
    if not learned:
        return None

    def outputs(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = iter(values)
        result = overload(op)(*replace_tensors(args, given), **replace_tensors(kwargs, given))
        return list(result) if isinstance(result, (tuple, list)) else [result]

    def differentiable(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [y for y in outputs(values) if y.requires_grad]

    probe = differentiable([x.clone().requires_grad_(i in learned) for i, x in enumerate(tensors)])
    if not probe:
        return None
    drawn = [torch.rand(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in probe]
    cotangents = [y * (1 + 0.5j) if y.is_complex() else y for y in drawn]

    def step(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            values = [x.detach().requires_grad_(i in learned) for i, x in enumerate(inputs[: len(tensors)])]
            ys = differentiable(values)
            wanted = [values[i] for i in learned]
            gradients = torch.autograd.grad(ys, wanted, inputs[len(tensors) :], materialize_grads=True)
        return (*(y.detach() for y in ys), *gradients)

    try:
        return Gradient(step, [*tensors, *cotangents])
    except RuntimeError as error:
        if "is not implemented" not in str(error):
            raise
        return None


def _trace(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Graph:
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from samite.frontend import decompositions

    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in inputs]
        traced = make_fx(function, decomposition_table=decompositions.table())(*fakes)
        traced = make_fx(torch.func.functionalize(traced, remove="mutations"))(*fakes)
    traced.graph.eliminate_dead_code()
    return import_graph(traced.graph).graph


def _placed(graph: Graph, layouts: Sequence[Layout], mesh: Mesh) -> Module:
    """The graph as the function of a module whose arguments have these layouts."""
    module = Module.empty(mesh)
    arguments = [
        Argument(a.type, f"x{i}", str(layout))
        for i, (a, layout) in enumerate(zip(graph.arguments, layouts, strict=True))
    ]
    with Builder(module, "main", arguments) as build:
        build.finish(build.inline(graph, build.arguments))
    return module
