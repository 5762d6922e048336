"""Halos: what a rank's part of one dim needs of another dim that lies under it, fetched from its neighbours.

Input and output of a convolution, of a pool or of a pad are such dims. A rank's window is a range of fixed length whose
first position is a function of the first index of the rank's own part, which is traced: one program serves all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from samite.ir.collectives import join_axes
from samite.rules.shards import Shards, along

__all__ = ["First", "Sliding", "cut", "fetch", "start", "starts"]

First = Callable[[Any], Any]
"""From the first index of a rank's part of a letter, as an int or as a 0-d int64, to a position of another letter."""


def starts(s: Shards, letter: str) -> list[int]:
    """The first index of each rank's part of a window's letter, in the order of `Shards.index`."""
    return [rank * s.local_size(letter) for rank in range(s.peers(letter))]


def start(s: Shards, letter: str) -> torch.Tensor:
    """0-d int64: the first index of this rank's part."""
    return s.index(letter) * s.local_size(letter)


@dataclass(frozen=True)
class Sliding:
    """A kernel sliding over one dim: output i reads inputs i * stride - padding + k * dilation, for k < kernel."""

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """From the first input that an output reads to the last."""
        return self.dilation * (self.kernel - 1)

    def first_input(self, output: Any) -> Any:
        """Of those that outputs from this one on read."""
        return output * self.stride - self.padding

    def inputs(self, outputs: int) -> int:
        """How many inputs this many outputs span."""
        return (outputs - 1) * self.stride + self.reach + 1

    def first_output(self, input: Any) -> Any:
        """A lower bound of those that read inputs from this one on."""
        return (input + self.padding - self.reach) // self.stride

    def skipped(self, input: Any) -> Any:
        """How many inputs `first_output(input)` reads before this one, or could."""
        return input - self.first_input(self.first_output(input))

    def outputs(self, firsts: Sequence[int], inputs: int) -> int:
        """How many outputs, from `first_output` on, span `inputs` ones from any of `firsts` on, and read all of them
        that are read."""
        last = max(self.skipped(first) for first in firsts) + inputs - 1
        return max(last // self.stride, -(-(last - self.reach) // self.stride)) + 1


def fetch(
    s: Shards, x: torch.Tensor, letter: str, dim: int, over: str, first: First, need: int, fill: float | int | bool = 0
) -> torch.Tensor:
    """`need` positions along `dim`, which is the split letter `letter` of a window, from `first(start)` on, `start`
    being where this rank's part of the window's letter `over` begins. What is beyond all positions is `fill`."""
    lows = [first(at) for at in starts(s, over)]
    positions = first(start(s, over)) + torch.arange(need)
    pieces = _pieces(s, letter, lows, need)
    if pieces is None:
        found = s.all_gather(x, letter, dim).index_select(dim, positions.clamp(0, s.size(letter) - 1))
    else:
        joined = torch.cat([_piece(s, x, letter, dim, piece) for piece in pieces], dim)
        if not joined.shape[dim]:  # every window lies outside
            return torch.full([*x.shape[:dim], need, *x.shape[dim + 1 :]], fill, dtype=x.dtype)
        if joined.shape[dim] == need and _follow(pieces, lows, s.local_size(letter)):
            found = joined
        else:
            found = joined.index_select(dim, _places(s, letter, pieces, positions))
    if all(low >= 0 and low + need <= s.size(letter) for low in lows):
        return found
    inside = along((positions >= 0) & (positions < s.size(letter)), dim, x.ndim)
    return torch.where(inside, found, torch.full((), fill, dtype=x.dtype))


def cut(s: Shards, x: torch.Tensor, letter: str, dim: int, first: First) -> torch.Tensor:
    """The part of `x` along `dim` that is this rank's of a letter of a window: from `first(start)` on."""
    offsets, length = {first(at) for at in starts(s, letter)}, s.local_size(letter)
    if len(offsets) == 1:
        return x.narrow(dim, offsets.pop(), length)
    return x.index_select(dim, first(start(s, letter)) + torch.arange(length))


@dataclass(frozen=True)
class _Piece:
    """[begin, end) of the shard of the rank `shift` further on, which `ranks` need; `place` is where it begins among
    all pieces."""

    shift: int
    begin: int
    end: int
    place: int
    ranks: tuple[int, ...]


def _pieces(s: Shards, letter: str, lows: Sequence[int], need: int) -> list[_Piece] | None:
    """What to exchange, by ascending shift; None if gathering all of the dim moves no more."""
    size, chunk = s.size(letter), s.local_size(letter)
    wanted: dict[int, list[tuple[int, int, int]]] = {0: []}
    for rank, low in enumerate(lows):
        low, high = max(low, 0), min(low + need, size)
        for owner in range(low // chunk, -(-high // chunk)):
            begin, end = max(low - owner * chunk, 0), min(high - owner * chunk, chunk)
            if begin < end:  # a window that begins behind the last position reads nothing
                wanted.setdefault(owner - rank, []).append((rank, begin, end))
    made: list[_Piece] = []
    place = 0
    for shift, asked in sorted(wanted.items()):
        begin, end = min((a for _, a, _ in asked), default=0), max((b for *_, b in asked), default=0)
        made.append(_Piece(shift, begin, end, place, tuple(rank for rank, *_ in asked)))
        place += end - begin
    own = next(piece for piece in made if not piece.shift)
    return made if place - (own.end - own.begin) < (len(lows) - 1) * chunk else None


def _piece(s: Shards, x: torch.Tensor, letter: str, dim: int, piece: _Piece) -> torch.Tensor:
    part = x.narrow(dim, piece.begin, piece.end - piece.begin)
    if not piece.shift:
        return part
    pairs = [end for rank in piece.ranks for end in (rank + piece.shift, rank)]
    return torch.ops.samite.permute(part.contiguous(), join_axes(s.axes(letter)), pairs)


def _follow(pieces: Sequence[_Piece], lows: Sequence[int], chunk: int) -> bool:
    """Whether the pieces, one after another, are every rank's window from its first position on."""
    return all(
        piece.place - piece.begin + lows[rank] == (rank + piece.shift) * chunk
        for piece in pieces
        for rank in piece.ranks
    )


def _places(s: Shards, letter: str, pieces: Sequence[_Piece], positions: torch.Tensor) -> torch.Tensor:
    """Where positions are among the pieces; anywhere, if they are in none."""
    chunk = s.local_size(letter)
    owner = positions.div(chunk, rounding_mode="floor")
    found = positions - owner * chunk
    for piece in pieces:
        found = torch.where(owner - s.index(letter) == piece.shift, found + (piece.place - piece.begin), found)
    return found.clamp(0, max(pieces[-1].place + pieces[-1].end - pieces[-1].begin - 1, 0))
