"""One trial: an op on shards of given layouts, partitioned and run as a real program is, against the whole result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from samite.errors import VerifyError
from samite.ir.build import Builder
from samite.ir.context import TensorType
from samite.ir.graph import Argument, Op
from samite.ir.module import Module
from samite.layout import Layout
from samite.lowering import graph_to_fx
from samite.mesh import Mesh
from samite.passes.partition import Partition
from samite.runtime.interpreter import generate, run_lockstep
from samite.runtime.sharding import assemble
from samite.testing.rulecheck.placements import scatter

__all__ = ["Case", "Ranks", "compile_case", "difference", "run_case"]


@dataclass(frozen=True)
class Case:
    """What the operands of an op are laid out as, and what its results then are."""

    needs: tuple[Layout, ...]
    results: tuple[Layout, ...]

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.needs))} -> {', '.join(map(str, self.results))}"


Ranks = list[tuple[torch.Tensor, ...]]
"""The results of every rank."""


def run_case(
    op: Op,
    case: Case,
    operands: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor | None],
    mesh: Mesh,
    generator: torch.Generator,
    *,
    poisoned: bool = True,
    compare: bool = True,
) -> str:
    """What is wrong with the op's rule in this case, "" if nothing is."""
    columns = [
        scatter(x, layout, mesh, generator, poisoned=poisoned) for x, layout in zip(operands, case.needs, strict=True)
    ]
    try:
        run = compile_case(op, case, mesh)
        outputs = run([[column[rank] for column in columns] for rank in range(mesh.size)])
    except Exception as error:  # whatever a rule's function raises is what is wrong with it
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    eps = _coarsest([*op.operands, *op.results])
    return difference(outputs, case.results, expected, mesh, eps=eps, compare=compare)


def compile_case(op: Op, case: Case, mesh: Mesh):
    """A function from every rank's operands to every rank's results."""
    module = Module.empty(mesh)
    arguments = [Argument(t, layout=str(layout)) for t, layout in zip(op.operands, case.needs, strict=True)]
    with Builder(module, "main", arguments) as build:
        made = build.op(op, build.arguments, op.results, layouts=[str(layout) for layout in case.results])
        build.finish([v for v, t in zip(made, op.results, strict=True) if t.dtype != "none"])
    local = graph_to_fx(Partition().run(module).graph, mesh)
    code = generate(local, op.name)
    mains = [code.bind(mesh, rank) for rank in range(mesh.size)]

    def run(inputs: Sequence[Sequence[torch.Tensor]]) -> Ranks:
        with torch.no_grad():
            return run_lockstep(mains, inputs, mesh, code)

    return run


def difference(
    outputs: Ranks,
    layouts: Sequence[Layout],
    expected: Sequence[torch.Tensor | None],
    mesh: Mesh,
    *,
    eps: float,
    compare: bool = True,
) -> str:
    """Where the ranks' results are not the expected ones, or replicas of them differ; "" if nowhere.

    An expected None is a result that the op left out. `eps` is the rounding error to allow for.
    """
    wanted = [(x, layout) for x, layout in zip(expected, layouts, strict=True) if x is not None]
    for index, (whole, layout) in enumerate(wanted):
        locals_ = [rank[index].contiguous() for rank in outputs]
        shape = layout.local_shape(mesh)
        if any(tuple(x.shape) != shape or x.dtype != whole.dtype for x in locals_):
            return (
                f"result {index}: a rank has {locals_[0].dtype}{list(locals_[0].shape)}, not {whole.dtype}{list(shape)}"
            )
        if not compare:
            continue
        try:
            made = assemble(locals_, layout, mesh, check=True)
        except VerifyError as error:
            return f"result {index}: {error.what}"
        gap = _gap(made, whole, eps)
        if gap:
            return f"result {index}: {gap}"
    return ""


def _coarsest(types: Sequence[TensorType]) -> float:
    """The largest rounding error among the types: operands are rounded when they are dealt out as terms."""
    dtypes = [getattr(torch, t.dtype) for t in types if t.dtype != "none"]
    return max((torch.finfo(d).eps for d in dtypes if d.is_floating_point or d.is_complex), default=0.0)


def _gap(made: torch.Tensor, whole: torch.Tensor, eps: float) -> str:
    if not (whole.is_floating_point() or whole.is_complex()):
        wrong = int((made != whole).sum())
        return f"{wrong} of {whole.numel()} elements differ" if wrong else ""
    # Partial sums cancel, so errors are relative to the terms (a few units), not to the sum.
    tolerance = 64 * eps
    if torch.allclose(made, whole, rtol=tolerance, atol=tolerance * (1 + _scale(whole)), equal_nan=True):
        return ""
    missing = int((made.isnan() & ~whole.isnan()).sum())
    if missing:
        return f"{missing} of {whole.numel()} elements are NaN"
    return f"differs by {(made - whole).abs().max().item():.3g}"


def _scale(whole: torch.Tensor) -> float:
    finite = whole[whole.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
