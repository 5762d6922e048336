"""Between global tensors and the local buffers of ranks: `lay` cuts, `assemble` joins.

Reshaped to its factors, a tensor has one dim a factor, and a rank keeps one contiguous range of each. So both
directions are a reshape and a chain of `narrow`, whatever the layout; no index tensor is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from samite.errors import InputError, VerifyError
from samite.layout import Layout, identity
from samite.mesh import Mesh

__all__ = ["Window", "assemble", "dtype_name", "fill", "home_ranks", "lay", "poison", "window"]


@dataclass(frozen=True, slots=True)
class Window:
    """What one rank holds of a global tensor, factor by factor: `length[i]` from `start[i]` of `size[i]`.

    The buffer has `local[i]` places for it; those after `length[i]` are padding. `term` tells whether the rank
    contributes the value to an owed sum or product, or its neutral element; `held` whether it is one of the ranks that
    a pinned layout means. One that is not has none of this, but an empty tensor.
    """

    size: tuple[int, ...]
    local: tuple[int, ...]
    start: tuple[int, ...]
    length: tuple[int, ...]
    local_shape: tuple[int, ...]
    term: bool
    held: bool

    @property
    def full(self) -> bool:
        """Whether the buffer has no padding on this rank."""
        return self.length == self.local

    def of_global(self, value: torch.Tensor) -> torch.Tensor:
        """The rank's part of a global tensor, of shape `length`; a view if `value` can be viewed as factors."""
        return _narrow(value.reshape(self.size), self.start, self.length)

    def of_local(self, buffer: torch.Tensor) -> torch.Tensor:
        """The valid part of a contiguous local buffer, of shape `length`; a view."""
        return _narrow(buffer.view(self.local), (0,) * len(self.local), self.length)


@lru_cache(maxsize=16384)
def window(layout: Layout, mesh: Mesh, rank: int) -> Window:
    """What `rank` holds of a value of this layout."""
    at = mesh.coordinates(rank)
    factors = [factor for dim in layout.dims for factor in dim]
    spans = [factor.span(mesh, at) for factor in factors]
    return Window(
        size=tuple(factor.size for factor in factors),
        local=tuple(factor.local(mesh) for factor in factors),
        # The first index of an empty shard may lie behind the end, where `narrow` refuses to look.
        start=tuple(first if valid else 0 for first, valid in spans),
        length=tuple(valid for _, valid in spans),
        local_shape=layout.local_shape(mesh),
        term=layout.kind not in ("sum", "prod") or not any(at[axis] for axis in layout.owed),
        held=layout.held_by(at),
    )


@lru_cache(maxsize=4096)
def home_ranks(layout: Layout, mesh: Mesh) -> tuple[int, ...]:
    """The ranks that hold a value whose layout is pinned, in order; empty if it is not, and all do."""
    if not layout.at:
        return ()
    return tuple(rank for rank in range(mesh.size) if layout.held_by(mesh.coordinates(rank)))


def _narrow(x: torch.Tensor, start: Sequence[int], length: Sequence[int]) -> torch.Tensor:
    for dim, (first, valid) in enumerate(zip(start, length, strict=True)):
        if valid != x.shape[dim]:
            x = x.narrow(dim, first, valid)
    return x


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name of a dtype, as `Argument.dtype` and `identity` spell it: "float32"."""
    return str(dtype).removeprefix("torch.")


def poison(dtype: torch.dtype) -> float | int | bool:
    """What fills padding so that any use of it shows: NaN, or a number too large to be an index."""
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype == torch.bool else min(torch.iinfo(dtype).max, 1_000_003)


def lay(value: torch.Tensor, layout: Layout, mesh: Mesh, rank: int, *, poisoned: bool = False) -> torch.Tensor:
    """The local buffer of `rank`, contiguous, of shape `layout.local_shape(mesh)`.

    It may share memory with `value` (a replica does): read it, or copy it. Padding is 0, or `poison` if asked for. Of
    a sum or product that is owed, the ranks at index 0 hold `value` and all others the neutral element. A rank that is
    not in the home of a pinned layout gets an empty tensor, of shape (0,). Raises InputError if `value` has not the
    layout's global shape.
    """
    w = window(layout, mesh, rank)
    _check_shape(value, layout)
    if not w.held:
        return value.new_empty(0)
    if w.full and w.term:
        return w.of_global(value).reshape(w.local_shape).contiguous()
    buffer = value.new_empty(w.local_shape)
    fill(buffer, value, layout, mesh, rank, poisoned=poisoned)
    return buffer


def fill(
    buffer: torch.Tensor, value: torch.Tensor, layout: Layout, mesh: Mesh, rank: int, *, poisoned: bool = False
) -> None:
    """`lay` into a contiguous buffer that exists, of the shape that it gives and of `value`'s dtype."""
    w = window(layout, mesh, rank)
    _check_shape(value, layout)
    if not w.held:
        return
    if not w.full:
        buffer.fill_(poison(value.dtype) if poisoned else 0)
    if w.term:
        w.of_local(buffer).copy_(w.of_global(value))
    else:
        w.of_local(buffer).fill_(identity(layout.kind, dtype_name(value.dtype)))


def _check_shape(value: torch.Tensor, layout: Layout) -> None:
    if tuple(value.shape) != layout.shape:
        raise InputError(f"a tensor of shape {tuple(value.shape)} where layout {layout} has {layout.shape}")


_REDUCE = {"sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum}


def assemble(locals: Sequence[torch.Tensor], layout: Layout, mesh: Mesh, *, check: bool = False) -> torch.Tensor:
    """The global tensor, in memory of its own, of one contiguous local buffer a rank, in rank order.

    Owed reductions are carried out, in rank order. With `check`, replicas are compared: VerifyError if they differ. Of
    a pinned layout only the buffers of its home are looked at.
    """
    whole = locals[0].new_empty(layout.shape)
    parts: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}  # place on the cutting axes -> on the owed -> rank
    for rank in home_ranks(layout, mesh) or range(mesh.size):
        at = mesh.coordinates(rank)
        terms = parts.setdefault(_index(at, layout.axes), {})
        first = terms.setdefault(_index(at, sorted(layout.owed)), rank)
        if check and first != rank:
            w = window(layout, mesh, rank)
            _check_equal(w.of_local(locals[first]), w.of_local(locals[rank]), first, rank, layout)
    for terms in parts.values():
        ranks = list(terms.values())
        w = window(layout, mesh, ranks[0])
        part = w.of_local(locals[ranks[0]])
        for rank in ranks[1:]:
            part = _REDUCE[layout.kind](part, w.of_local(locals[rank]))
        _narrow(whole.view(w.size), w.start, w.length).copy_(part)
    return whole


def _index(at: Mapping[str, int], axes: Sequence[str]) -> tuple[int, ...]:
    return tuple(at[axis] for axis in axes)


def _check_equal(x: torch.Tensor, y: torch.Tensor, first: int, rank: int, layout: Layout) -> None:
    if x.dtype.itemsize == 1 and x.is_floating_point():
        x, y = x.float(), y.float()  # torch compares no numbers of 8 bits
    # Kernels may round by alignment, so replicas that were computed apart agree to rounding, not to the bit.
    tolerance = torch.finfo(x.dtype).eps ** 0.5 if x.is_floating_point() or x.is_complex() else 0.0
    if not torch.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True):
        wide = torch.complex128 if x.is_complex() else torch.float64
        gap = (x.to(wide) - y.to(wide)).abs().max().item()
        raise VerifyError(
            f"replicas of a value laid out as {layout} differ between ranks {first} and {rank}, by {gap:.3g}",
            help="a rule or a pass called a value replicated that is partial or split",
        )
