"""Between layouts, and between a distributed tensor and this rank's part of it; all of it differentiable.

A gradient is that of the global value. So what reaches a tensor through `redistribute` lies as the tensor does, and
this rank's part of a gradient is the gradient of this rank's part; of a value that is owed every term has the whole
gradient.
"""

from __future__ import annotations

from math import prod
from typing import Any, cast

import torch

from samite.eager.driver import Driver
from samite.eager.rank import Rank
from samite.eager.spec import Spec, spec
from samite.eager.value import enclosing
from samite.layout import Layout
from samite.mesh import Mesh
from samite.rules.planning import settle
from samite.runtime.sharding import window
from samite.tensor.tensor import Tensor

__all__ = ["enclose", "relay", "valid_part", "valid_shape"]


def relay(x: Tensor, layout: Layout) -> Tensor:
    """The same value laid out by `layout`; `x` itself if it lies so."""
    layout = layout.canonical(x.mesh)
    return x if x.distribution.canonical(x.mesh) == layout else cast(Tensor, _Relay.apply(x, layout))


def valid_part(x: Tensor, gradient: Layout | None) -> torch.Tensor:
    """This rank's part of `x` without padding, sharing its memory. `gradient` is how gradients of it lie: as `x`,
    unless another is given."""
    return cast(torch.Tensor, _Part.apply(x, gradient))


def enclose(local: torch.Tensor, known: Spec) -> Tensor:
    """The tensor of which `local` is this rank's valid part; its memory is shared where there is no padding."""
    return cast(Tensor, _Enclose.apply(local, known))


def moved(x: Tensor, layout: Layout) -> Tensor:
    """`relay` below autograd."""
    home, firm = x.home, x._firm
    if isinstance(home, Driver):
        return home.handle(Tensor, home.relay(firm._remote, layout))
    local = home.reshard(firm._local, firm._spec, layout)
    if local is firm._local:
        local = local.clone()
    return enclosing(local, spec(home, layout, firm._spec.dtype), Tensor)


class _Relay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: Layout) -> Tensor:
        ctx.layout = settle(x.distribution.unpinned())
        return moved(x, layout)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        return relay(gradients[0], ctx.layout), None


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Layout | None) -> torch.Tensor:
        home = cast(Rank, x.home)
        firm = x._firm
        layout = firm._spec.layout
        ctx.spec = spec(home, settle(layout) if gradient is None else gradient, firm._spec.dtype)
        return _valid(firm._local, layout, home)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return _enclosed(gradients[0], ctx.spec), None


class _Enclose(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, known: Spec) -> Tensor:
        ctx.layout = settle(known.layout)
        return _enclosed(local, known)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None]:
        gradient = relay(gradients[0], ctx.layout)
        return _valid(gradient._firm._local, ctx.layout, cast(Rank, gradient.home)), None


def _valid(local: torch.Tensor, layout: Layout, home: Rank) -> torch.Tensor:
    """A buffer without its padding, which may lie in its middle where a dim has several factors."""
    w = window(layout, home.mesh, home.rank)
    if w.full:
        return local.view_as(local)
    return w.of_local(local.contiguous()).reshape(valid_shape(layout, home.mesh, home.rank))


def _enclosed(local: torch.Tensor, known: Spec) -> Tensor:
    home, layout = cast(Rank, known.home), known.layout
    w = window(layout, home.mesh, home.rank)
    if w.full:
        return enclosing(local.detach(), known, Tensor)
    buffer = local.new_zeros(w.local_shape)
    w.of_local(buffer).copy_(local.detach().reshape(w.length))
    return enclosing(buffer, known, Tensor)


def valid_shape(layout: Layout, mesh: Mesh, rank: int) -> tuple[int, ...]:
    """The shape of a rank's part without padding."""
    lengths = iter(window(layout, mesh, rank).length)
    return tuple(prod(next(lengths) for _ in dim) for dim in layout.dims)
