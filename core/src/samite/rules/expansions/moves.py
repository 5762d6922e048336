"""Moves along a split dim: slices, joins, shifts and sliding windows, by fetching what lies in neighbours' shards.

A dim before is the letter "x" (several are "x0", "x1", ...), the one after it "y".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samite.rules.shards import Shards, along
from samite.rules.windows import First, Sliding, cut, fetch, starts

__all__ = ["cat", "pad", "roll", "slice_backward", "slice_forward", "slice_scatter", "unfold", "unfold_backward"]


def _shifted(by: int) -> First:
    """Where what is moved on by so much comes from."""
    return lambda at: at - by


def _stepping(s: Shards, start: int | None, step: int) -> Sliding:
    first, _, _ = slice(start, None).indices(s.size("x"))
    return Sliding(1, step, -first)


def slice_forward(
    s: Shards, x: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> torch.Tensor:
    sliding = _stepping(s, start, step)
    read = fetch(s, x, "x", dim % x.ndim, "y", sliding.first_input, sliding.inputs(s.local_size("y")))
    return torch.ops.aten.slice.Tensor(read, dim, 0, read.shape[dim], step)


def _put_back(s: Shards, part: torch.Tensor, dim: int, sliding: Sliding, fill: float = 0) -> torch.Tensor:
    """A slice at its places in this rank's part of what it is of, and zeros between them."""
    dim %= part.ndim
    need = sliding.outputs(starts(s, "x"), s.local_size("x"))
    read = fetch(s, part, "y", dim, "x", sliding.first_output, need, fill)
    shape = list(read.shape)
    shape[dim] = sliding.inputs(need)
    wide = torch.ops.aten.slice_backward(read, shape, dim, 0, shape[dim], sliding.stride)
    return cut(s, wide, "x", dim, sliding.skipped)


def slice_backward(s: Shards, grad: torch.Tensor, *, dim: int, start: int, step: int, **_: Any) -> torch.Tensor:
    return _put_back(s, grad, dim, _stepping(s, start, step))


def slice_scatter(
    s: Shards,
    x: torch.Tensor,
    src: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> torch.Tensor:
    sliding = _stepping(s, start, step)
    place = s.positions("x") - sliding.first_input(0)
    written = (place >= 0) & (place < s.size("y") * step) & (place.remainder(step) == 0)
    return torch.where(along(written, dim, x.ndim), _put_back(s, src, dim, sliding), x)


def pad(s: Shards, x: torch.Tensor, *, pad: Sequence[int], value: float = 0) -> torch.Tensor:
    """Constants before and behind; a negative number of them cuts off. Dims that are whole are padded at once."""
    rest = list(pad)
    for i in range(len(pad) // 2):
        dim = x.ndim - 1 - i
        if s.split(f"x{dim}"):
            before = pad[2 * i]
            x = fetch(s, x, f"x{dim}", dim, f"y{dim}", _shifted(before), s.local_size(f"y{dim}"), value)
            rest[2 * i : 2 * i + 2] = [0, 0]
    return torch.ops.aten.constant_pad_nd(x, rest, value) if any(rest) else x


def cat(s: Shards, *parts: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Each part where it lies in this rank's part of the whole, one over the other."""
    made, first = None, 0
    positions = s.positions("y")
    for i, part in enumerate(parts):
        size = s.bound.sizes.get(f"x{i}", 0)
        if size == 0:
            continue
        here = fetch(s, part, f"x{i}", dim % part.ndim, "y", _shifted(first), s.local_size("y"))
        inside = along(positions >= first, dim, part.ndim)
        made = here if made is None else torch.where(inside, here, made)
        first += size
    assert made is not None
    return made


def roll(s: Shards, x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int]) -> torch.Tensor:
    """Each element moves on by the shift, those at the end to the front."""
    for shift, dim in zip(shifts, dims, strict=True):
        letter = f"x{dim % x.ndim}"
        if not s.split(letter):
            x = x.roll(shift, dim)
            continue
        by, length, after = shift % s.size(letter), s.local_size(letter), letter.replace("x", "y")
        moved = fetch(s, x, letter, dim % x.ndim, after, _shifted(by), length)
        wrapped = fetch(s, x, letter, dim % x.ndim, after, _shifted(by - s.size(letter)), length)
        x = torch.where(along(s.positions(after) < by, dim, x.ndim), wrapped, moved)
    return x


def unfold(s: Shards, x: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    sliding, dim = Sliding(size, step), dimension % x.ndim
    read = fetch(s, x, "x", dim, "y", sliding.first_input, sliding.inputs(s.local_size("y")))
    return read.unfold(dim, size, step)


def unfold_backward(s: Shards, grad: torch.Tensor, *, dim: int, size: int, step: int, **_: Any) -> torch.Tensor:
    sliding, dim = Sliding(size, step), dim % (grad.ndim - 1)
    need = sliding.outputs(starts(s, "x"), s.local_size("x"))
    read = fetch(s, grad, "y", dim, "x", sliding.first_output, need)
    shape = list(read.shape[:-1])
    shape[dim] = sliding.inputs(need)
    wide = torch.ops.aten.unfold_backward(read, shape, dim, size, step)
    return cut(s, wide, "x", dim, sliding.skipped)
