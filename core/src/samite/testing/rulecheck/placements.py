"""Which layouts a checker tries, and local operands of a layout with whatever may be in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from math import prod

import torch

from samite.ir.context import TensorType
from samite.layout import Factor, Layout
from samite.layout.factor import Dim
from samite.mesh import Mesh
from samite.rules.planning import settle
from samite.runtime.sharding import lay

__all__ = ["kinds_of", "layouts_of", "scatter"]

_KEEP = ("keep", -1, "")


def kinds_of(dtype: str) -> tuple[str, ...]:
    """The reductions that a value of this dtype may owe."""
    if dtype == "bool":
        return ("max", "min")
    if dtype.startswith("float8"):
        return ()  # torch adds no numbers of 8 bits
    return ("sum", "max", "min", "prod") if dtype.startswith(("float", "bfloat", "int")) else ("sum",)


@cache
def layouts_of(type: TensorType, mesh: Mesh, owed: bool = True) -> tuple[Layout, ...]:
    """The canonical layouts of a tensor, the replicated one first.

    Over every axis: replicated, each dim split, each dim's minor factor split (as in a flattened batch and time, or a
    fused weight), and each reduction owed. Two axes on one dim come in both orders.
    """
    choices: list[tuple[str, int, str]] = [_KEEP]
    for dim, size in enumerate(type.shape):
        choices.append(("split", dim, ""))
        if _divisor(size) > 1:
            choices.append(("minor", dim, ""))
    if owed:
        choices += [("owe", -1, kind) for kind in kinds_of(type.dtype)]
    found: dict[Layout, None] = {}
    for axes in ([*mesh], [*mesh][::-1]):
        for chosen in product(choices, repeat=len(mesh)):
            layout = _layout(type.shape, dict(zip(axes, chosen, strict=True)))
            if layout is not None:
                found.setdefault(layout.canonical(mesh))
    return tuple(found)


def _divisor(size: int) -> int:
    """The smallest proper divisor of a size above 1, else 1."""
    return next((d for d in range(2, size) if size % d == 0), 1)


def _layout(shape: Sequence[int], chosen: Mapping[str, tuple[str, int, str]]) -> Layout | None:
    kinds = {kind for verb, _, kind in chosen.values() if verb == "owe"}
    if len(kinds) > 1:
        return None
    dims: list[Dim] = []
    for dim, size in enumerate(shape):
        major, minor = (
            tuple(a for a, (v, d, _) in chosen.items() if (v, d) == (verb, dim)) for verb in ("split", "minor")
        )
        parts = _divisor(size)
        dims.append((Factor(parts, major), Factor(size // parts, minor)) if minor else (Factor(size, major),))
    return Layout(tuple(dims), "".join(kinds), frozenset(a for a, (verb, *_) in chosen.items() if verb == "owe"))


def scatter(
    value: torch.Tensor, layout: Layout, mesh: Mesh, generator: torch.Generator, *, poisoned: bool = True
) -> list[torch.Tensor]:
    """One local buffer a rank. What is owed is dealt out as terms of mixed signs; padding is poison, or else 0."""
    axes = [axis for axis in mesh if axis in layout.owed]
    count = prod(mesh[axis] for axis in axes)
    terms = list(_terms(value, layout.kind, count, generator)) if axes else [value]
    locals_: list[torch.Tensor] = []
    for rank in range(mesh.size):
        at, index = mesh.coordinates(rank), 0
        for axis in axes:
            index = index * mesh[axis] + at[axis]
        locals_.append(lay(terms[index], settle(layout), mesh, rank, poisoned=poisoned).clone())
    return locals_


def _terms(value: torch.Tensor, kind: str, count: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """`count` tensors whose reduction is `value`."""
    owner = torch.randint(0, count, value.shape, generator=generator)
    rest = value
    for index in range(count):
        noise = _noise(value, generator)
        match kind:
            case "sum":
                yield rest if index == count - 1 else noise
                rest = rest - noise
            case "max" if value.dtype == torch.bool:
                yield value & ((owner == index) | noise)
            case "min" if value.dtype == torch.bool:
                yield value | ((owner != index) & noise)
            case "max":
                yield torch.where(owner == index, value, value - noise.abs())
            case "min":
                yield torch.where(owner == index, value, value + noise.abs())
            case _:  # prod: signs that cancel, and powers of two that divide out exactly
                sign = noise.sign().masked_fill(noise == 0, 1).to(value.dtype)
                scale = torch.exp2(noise.round()) * sign if value.dtype.is_floating_point else sign
                yield rest if index == count - 1 else scale
                rest = rest / scale if value.dtype.is_floating_point else rest * scale


def _noise(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if like.dtype == torch.bool:
        return torch.rand(like.shape, generator=generator) < 0.5
    if like.is_complex():
        parts = torch.rand((*like.shape, 2), generator=generator, dtype=torch.float64) * 6 - 3
        return torch.view_as_complex(parts).to(like.dtype)
    if like.dtype.is_floating_point:
        return (torch.rand(like.shape, generator=generator, dtype=torch.float64) * 6 - 3).to(like.dtype)
    return torch.randint(-5, 6, like.shape, generator=generator).to(like.dtype)
