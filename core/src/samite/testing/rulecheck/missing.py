"""Placements that a rule misses: the op is right on shards as they lie, yet its rule moves an operand first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from samite.errors import VerifyError
from samite.ir.context import TensorType
from samite.ir.graph import Op
from samite.layout import Factor, Layout
from samite.mesh import Mesh
from samite.runtime.sharding import assemble
from samite.testing.rulecheck.placements import layouts_of, scatter

__all__ = ["describe", "works_locally"]


def works_locally(
    op: Op,
    call: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
    operands: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor | None],
    have: Sequence[Layout],
    mesh: Mesh,
    generator: torch.Generator,
) -> tuple[Layout, ...] | None:
    """The layouts of the results if every rank just runs the op on what it has; None if that gives wrong numbers.

    `call` is the op over local tensors. Literals stay global, so ops whose literals are shapes are not found.
    """
    if any(layout.padded(mesh) for layout in have):
        return None
    columns = [scatter(x, layout, mesh, generator) for x, layout in zip(operands, have, strict=True)]
    try:
        ranks = [call([column[rank] for column in columns]) for rank in range(mesh.size)]
    except (RuntimeError, IndexError, ValueError):  # shapes that the op refuses
        return None
    if any(len(rank) != len(expected) for rank in ranks):  # a shard cut into fewer parts
        return None
    found = [
        Layout(()) if whole is None else _layout(type_, [rank[i] for rank in ranks], whole, mesh)
        for i, (type_, whole) in enumerate(zip(op.results, expected, strict=True))
    ]
    return tuple(layout for layout in found if layout is not None) if None not in found else None


def _layout(type: TensorType, locals_: Sequence[torch.Tensor], whole: torch.Tensor, mesh: Mesh) -> Layout | None:
    """How these buffers lie if they are shards, replicas or terms of `whole`."""
    for layout in layouts_of(type, mesh):
        if layout.padded(mesh) or any(x.shape != layout.local_shape(mesh) or x.dtype != whole.dtype for x in locals_):
            continue
        try:
            made = assemble([x.contiguous() for x in locals_], layout, mesh, check=True)
        except VerifyError:
            continue
        if (
            torch.allclose(made, whole, equal_nan=True)
            if whole.dtype.is_floating_point
            else bool((made == whole).all())
        ):
            return layout
    return None


def describe(layouts: Sequence[Layout]) -> str:
    """Layouts without their sizes, so that those of several samples look alike."""

    def factor(f: Factor) -> str:
        return ".".join(f.axes) or "_"

    def one(layout: Layout) -> str:
        dims = [factor(d[0]) if len(d) == 1 else f"({' '.join(map(factor, d))})" for d in layout.dims]
        return f"[{', '.join(dims)}]" + (f" {layout.kind}" if layout.kind else "")

    return ", ".join(map(one, layouts))
