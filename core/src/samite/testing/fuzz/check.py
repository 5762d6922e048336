"""A program on its mesh, beside the same program on one device."""

from __future__ import annotations

from typing import Any

import torch

from samite.api import compile, mesh
from samite.placement import Shard
from samite.testing.fuzz.programs import Program

__all__ = ["Different", "check"]

TOLERANCE = 1e-8
"""Of the largest element of a value: float64 results of sums in another order, a few dozen ops deep."""


class Different(AssertionError):
    """A result or gradient is not that of one device."""


def check(program: Program) -> None:
    """Raises Different, or what the compiler raises."""
    expected = program.function()(*program.inputs())
    placements = {
        f"x{i}": {axis: Shard(dim) for axis, dim in placed} for i, placed in enumerate(program.placements) if placed
    }
    axes: dict[str, Any] = dict(program.mesh)
    where = mesh("cpu", engine="lockstep", **axes)
    found = compile(program.function(), mesh=where, placements=placements)(*program.inputs())
    names = [*program.results, *(f"gradient of x{i}" for i in range(len(program.shapes)))]
    for name, want, have in zip(names, expected, found, strict=True):
        _compare(name, want, have)


def _compare(name: str, want: Any, have: Any) -> None:
    if (want is None) != (have is None):
        raise Different(f"{name}: {'there is none' if have is None else 'there is one'}, one device disagrees")
    if want is None:
        return
    want, have = want.detach(), have.detach().clone()
    if want.shape != have.shape or want.dtype != have.dtype:
        raise Different(f"{name}: {have.dtype}{list(have.shape)}, one device has {want.dtype}{list(want.shape)}")
    scale = max(1.0, float(want.nan_to_num().abs().amax())) if want.numel() else 1.0
    if not torch.allclose(have, want, rtol=0, atol=TOLERANCE * scale, equal_nan=True):
        raise Different(f"{name} is\n{have}\none device has\n{want}")
