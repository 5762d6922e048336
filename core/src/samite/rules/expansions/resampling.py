"""Resizing over split spatial dims, with a halo.

Nearest and linear resizing go dim by dim: every place after it reads one place before it, or two with weights. Which
those are is computed as torch's kernels do, down to the precision of the scale; what is fetched is a little more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from samite.rules.shards import Shards, along
from samite.rules.windows import fetch, start

__all__ = ["resize", "resize_backward"]

_SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
Tap = tuple[torch.Tensor, torch.Tensor | None]
"""(the place before that each place after reads, with which weight); None is 1."""


class _Dim:
    """One dim, `before` to `after` long. Ranges of it are found by its sizes alone, in whole numbers; a scale of the
    user's own differs from them by less than a step, and aligned corners by one place."""

    def __init__(self, kind: str, before: int, after: int, scale: float | None, corners: bool, backward: bool) -> None:
        self.kind, self.before, self.after, self.corners, self.backward = kind, before, after, corners, backward
        if corners:
            self.step = (before - 1) / (after - 1) if after > 1 else 0.0
        else:
            self.step = 1 / scale if scale else before / after
        self.slack_before, self.slack_after = before // after + 4, after // before + 4

    def taps(self, places: torch.Tensor, dtype: torch.dtype) -> list[Tap]:
        last = self.before - 1
        # Whatever the scale, linear kernels copy what keeps its length, and nearest gradients what doubles too.
        plain = {"linear": (self.before,), "nearest": (self.before, 2 * self.before)}
        if self.after in plain.get(self.kind, ()) and (self.backward or self.kind == "linear"):
            return [(places // (self.after // self.before), None)]
        wide = dtype if self.kind == "linear" else torch.float32
        step = torch.full((), self.step, dtype=wide)
        if self.kind != "linear":
            source = (places.to(wide) + (0.5 if self.kind == "exact" else 0.0)) * step
            return [(source.floor().to(torch.int64).clamp(0, last), None)]
        if self.corners:
            source = places.to(wide) * step
        else:
            source = ((places.to(wide) + 0.5) * step - 0.5).clamp(min=0)
        low = source.floor().to(torch.int64).clamp(0, last)
        weight = source - low.to(wide)
        return [(low, 1 - weight), ((low + 1).clamp(max=last), weight)]

    def first_read(self, place: Any) -> Any:
        return place * self.before // self.after - self.slack_before

    def reads(self, places: int) -> int:
        return places * self.before // self.after + 2 * self.slack_before + 2

    def first_reader(self, place: Any) -> Any:
        return (place - self.slack_before) * self.after // self.before - self.slack_after

    def readers(self, places: int) -> int:
        return (places + 2 * self.slack_before) * self.after // self.before + 2 * self.slack_after + 2


def _dims(s: Shards, kind: str, literals: dict[str, Any]) -> Iterator[tuple[int, str, str, _Dim]]:
    """(dim, its letter before, and after it, how it is resized), from the last dim on."""
    spatial = sum(f"x{i}" in s.bound.sizes for i in range(3))
    for i in range(spatial):
        x, y = f"x{i}", f"y{i}"
        scale = literals.get(_SCALES[spatial][i])
        corners, backward = literals.get("align_corners", False), "input_size" in literals
        yield i - spatial, x, y, _Dim(kind, s.size(x), s.size(y), scale, corners, backward)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def resize(kind: str) -> Callable[..., torch.Tensor]:
    """The expansion of a resize that is "nearest", "exact" or "linear"."""

    def expand(s: Shards, x: torch.Tensor, **literals: Any) -> torch.Tensor:
        x = _wide(x)
        for dim, before, after, resized in _dims(s, kind, literals):
            places, first = s.positions(after), 0
            if s.split(before):
                need = resized.reads(s.local_size(after))
                x = fetch(s, x, before, dim % x.ndim, after, resized.first_read, need)
                first = resized.first_read(start(s, after))
            # Padding reads anything.
            taps = [((place - first).clamp(0, x.shape[dim] - 1), w) for place, w in resized.taps(places, x.dtype)]
            read = [x.index_select(dim, place) * (1 if w is None else along(w, dim, x.ndim)) for place, w in taps]
            x = read[0] if len(read) == 1 else read[0] + read[1]
        return x.to(s.dtype())

    return expand


def resize_backward(kind: str) -> Callable[..., torch.Tensor]:
    def expand(s: Shards, grad: torch.Tensor, **literals: Any) -> torch.Tensor:
        grad = _wide(grad)
        for dim, before, after, resized in _dims(s, kind, literals):
            places, first, length = s.positions(after), 0, s.local_size(before)
            if s.split(before):
                need = resized.readers(length)
                grad = fetch(s, grad, after, dim % grad.ndim, before, resized.first_reader, need)
                places = resized.first_reader(start(s, before)) + torch.arange(need)
                first = start(s, before)
            shape = list(grad.shape)
            shape[dim] = length
            made = torch.zeros(shape, dtype=grad.dtype)
            for place, weight in resized.taps(places, grad.dtype):
                at = place - first
                mine = (at >= 0) & (at < length) & (places >= 0) & (places < resized.after)
                share = mine.to(grad.dtype) if weight is None else torch.where(mine, weight, 0.0)
                made = made.index_add(dim, torch.where(mine, at, 0), grad * along(share, dim, grad.ndim))
            grad = made
        return grad.to(s.dtype())

    return expand
