"""Pools over split spatial dims, with a halo: windows slide as those of a convolution do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch

from samite.layout import identity
from samite.rules.shards import Shards, along
from samite.rules.windows import Sliding, cut, fetch, start, starts

__all__ = ["average_pool", "average_pool_backward", "max_pool", "max_pool_backward"]


class _Geometry:
    """One call over the last `spatial` dims, "x0" and on before and "y0" and on after it."""

    def __init__(self, s: Shards, literals: dict[str, Any]) -> None:
        self.s = s
        spatial = sum(f"x{i}" in s.bound.sizes for i in range(3))

        def each(value: Sequence[int]) -> list[int]:
            return [*value] * (spatial if len(value) == 1 else 1)

        self.kernel = each(literals["kernel_size"])
        self.stride = each(literals.get("stride") or self.kernel)
        padding, dilation = each(literals.get("padding") or [0]), each(literals.get("dilation") or [1])
        self.sliding = [Sliding(*g) for g in zip(self.kernel, self.stride, padding, dilation, strict=True)]
        self.split = [s.split(f"x{i}") for i in range(spatial)]
        # What is fetched has the padding in it.
        self.padding = [0 if split else p for split, p in zip(self.split, padding, strict=True)]
        self.dilation, self.dims = list(dilation), range(-spatial, 0)

    def under(self, x: torch.Tensor, fill: float) -> torch.Tensor:
        """The inputs of this rank's outputs."""
        for i, (dim, sliding, split) in enumerate(zip(self.dims, self.sliding, self.split, strict=True)):
            if split:
                need = sliding.inputs(self.s.local_size(f"y{i}"))
                x = fetch(self.s, x, f"x{i}", dim % x.ndim, f"y{i}", sliding.first_input, need, fill)
        return x

    def over(self, y: torch.Tensor, fill: float) -> torch.Tensor:
        """The outputs that read this rank's inputs."""
        for i, (dim, sliding, split) in enumerate(zip(self.dims, self.sliding, self.split, strict=True)):
            if split:
                need = sliding.outputs(starts(self.s, f"x{i}"), self.s.local_size(f"x{i}"))
                y = fetch(self.s, y, f"y{i}", dim % y.ndim, f"x{i}", sliding.first_output, need, fill)
        return y

    def places(self, indices: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Indices into a plane of these sizes, dim by dim."""
        found: list[torch.Tensor] = []
        for size in reversed(sizes):
            found.insert(0, indices.remainder(size))
            indices = indices.div(size, rounding_mode="floor")
        return found

    def index(self, places: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
        return reduce(lambda index, pair: index * pair[1] + pair[0], zip(places, sizes, strict=True), places[0] * 0)

    def sizes(self) -> list[int]:
        """The global plane before the pool."""
        return [self.s.size(f"x{i}") for i in range(len(self.dims))]


def max_pool(name: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The expansion of `aten.<name>`; its indices are global."""

    def expand(s: Shards, x: torch.Tensor, **literals: Any) -> tuple[torch.Tensor, torch.Tensor]:
        g = _Geometry(s, literals)
        under = g.under(x, identity("max", str(x.dtype).removeprefix("torch.")))
        ceil = literals.get("ceil_mode", False)
        values, indices = getattr(torch.ops.aten, name)(under, g.kernel, g.stride, g.padding, g.dilation, ceil)
        places = g.places(indices, under.shape[-len(g.dims) :])
        for i, (sliding, split) in enumerate(zip(g.sliding, g.split, strict=True)):
            if split:
                place = places[i] + sliding.first_input(start(s, f"y{i}"))
                # Where nothing is larger than what lies before the dim, the first element in it is meant.
                places[i] = torch.where(place < 0, place.remainder(sliding.dilation), place)
        return values, g.index(places, g.sizes())

    return expand


def max_pool_backward(s: Shards, grad: torch.Tensor, x: torch.Tensor, indices: torch.Tensor, **literals: Any) -> Any:
    g = _Geometry(s, literals)
    grad, indices = g.over(grad, 0), g.over(indices, -1)
    mine = indices >= 0
    places = g.places(indices, g.sizes())
    local = list(x.shape[-len(g.dims) :])
    for i, split in enumerate(g.split):
        if split:
            places[i] = places[i] - start(s, f"x{i}")
            mine = mine & (places[i] >= 0) & (places[i] < local[i])
    count = reduce(lambda n, size: n * size, local, 1)
    index = torch.where(mine, g.index(places, local), count).flatten(-len(g.dims))
    made = torch.zeros([*x.shape[: -len(g.dims)], count + 1], dtype=grad.dtype)
    made = made.scatter_add(-1, index, grad.flatten(-len(g.dims)))
    return made.narrow(-1, 0, count).reshape(x.shape)


def _counts(g: _Geometry, ndim: int, literals: dict[str, Any], dtype: torch.dtype) -> torch.Tensor:
    """What each output's sum is divided by, shaped to broadcast over it."""
    if literals.get("divisor_override") is not None:
        return torch.full([1] * ndim, literals["divisor_override"], dtype=dtype)
    count = torch.ones([1] * ndim, dtype=dtype)
    for i, (dim, sliding) in enumerate(zip(g.dims, g.sliding, strict=True)):
        outside = sliding.padding if literals.get("count_include_pad", True) else 0
        first = sliding.first_input(g.s.positions(f"y{i}"))
        last = (first + sliding.kernel).clamp(max=g.s.size(f"x{i}") + outside)
        # Padding, of the shard's own, would have counts below 1.
        count = count * along((last - first.clamp(min=-outside)).clamp(min=1).to(dtype), dim, ndim)
    return count


def _over(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return x / counts if x.dtype.is_floating_point else x.div(counts, rounding_mode="trunc")


def average_pool(name: str) -> Callable[..., torch.Tensor]:
    """The expansion of `aten.<name>`: sums, over counts that know where the plane ends."""

    def expand(s: Shards, x: torch.Tensor, **literals: Any) -> torch.Tensor:
        g = _Geometry(s, literals)
        ceil = literals.get("ceil_mode", False)
        sums = getattr(torch.ops.aten, name)(g.under(x, 0), g.kernel, g.stride, g.padding, ceil, True, 1)
        return _over(sums, _counts(g, x.ndim, literals, x.dtype))

    return expand


def average_pool_backward(name: str) -> Callable[..., torch.Tensor]:
    def expand(s: Shards, grad: torch.Tensor, x: torch.Tensor, **literals: Any) -> torch.Tensor:
        g = _Geometry(s, literals)
        scaled = g.over(_over(grad, _counts(g, grad.ndim, literals, grad.dtype)), 0)
        shape = list(x.shape)
        for dim, sliding, split in zip(g.dims, g.sliding, g.split, strict=True):
            if split:
                shape[dim] = sliding.inputs(scaled.shape[dim])
        ceil = literals.get("ceil_mode", False)
        options = (g.kernel, g.stride, g.padding, ceil, True, 1)
        made = getattr(torch.ops.aten, f"{name}_backward")(scaled, torch.empty(shape, dtype=x.dtype), *options)
        for i, (dim, sliding, split) in enumerate(zip(g.dims, g.sliding, g.split, strict=True)):
            if split:
                made = cut(s, made, f"x{i}", dim % made.ndim, sliding.skipped)
        return made

    return expand
