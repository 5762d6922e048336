"""Functions with control flow, and what they give on one device: the same Python without torch's ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch._higher_order_ops as higher
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._higher_order_ops.map import map as torch_map


class Plain:
    """What torch's ops of control flow say they are."""

    @staticmethod
    def cond(predicate: Any, then: Any, otherwise: Any, operands: Any = ()) -> Any:
        return then(*operands) if predicate else otherwise(*operands)

    @staticmethod
    def while_loop(condition: Any, body: Any, carried: Any) -> Any:
        while condition(*carried):
            carried = body(*carried)
        return carried

    @staticmethod
    def scan(function: Any, carry: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
        steps = range(pytree.tree_leaves(xs)[0].shape[dim])
        made: list[Any] = []
        for step in reversed(steps) if reverse else steps:
            carry, y = function(carry, pytree.tree_map(lambda x, at=step: x.select(dim, at), xs))
            made.append(y)
        made = made[::-1] if reverse else made
        return carry, pytree.tree_map(lambda *parts: torch.stack(parts, dim), *made)

    @staticmethod
    def map(function: Any, xs: Any, *others: Any) -> Any:
        steps = range(pytree.tree_leaves(xs)[0].shape[0])
        made = [function(pytree.tree_map(lambda x, at=step: x[at], xs), *others) for step in steps]
        return pytree.tree_map(lambda *parts: torch.stack(parts), *made)


class Torch:
    cond = staticmethod(torch.cond)
    while_loop = staticmethod(higher.while_loop)
    scan = staticmethod(higher.scan)
    map = staticmethod(torch_map)


ops: Any = Torch


def branch(x: Tensor, w: Tensor) -> Tensor:
    """Branches reach `w` past their arguments."""
    y = ops.cond(x.sum() > 0, lambda a: (a @ w).relu(), lambda a: a.sin() * w[0], (x,))
    y.square().sum().backward()
    return y


def nested(x: Tensor, w: Tensor) -> Tensor:
    def inner(a: Tensor) -> Tensor:
        return ops.cond(w.sum() > 0, lambda b: b @ w, lambda b: b * w[0], (a,))

    y = ops.cond(x.sum() < 0, inner, lambda a: inner(a) * w.sum(), (x,))
    y.square().sum().backward()
    return y


def returned(x: Tensor, w: Tensor) -> Any:
    """Arguments as they came, and leaves that are no tensors."""
    return ops.cond(x.sum() > 0, lambda: (x, None, {"w": w, "n": 3}), lambda: (x * 2, None, {"w": w + 1, "n": 3}))


def halved(x: Tensor, w: Tensor) -> Any:
    """A loop whose length is a matter of data, and a number that it counts with."""
    with torch.no_grad():
        return ops.while_loop(lambda n, a: (a.abs().sum() > 1) & (n < 20), lambda n, a: (n + 1, a @ w * 0.3), (0, x))


def power(x: Tensor, w: Tensor) -> Tensor:
    def body(n: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        v = w @ v
        return n + 1, v / v.norm()

    with torch.no_grad():
        return ops.while_loop(lambda n, v: n < 5, body, (torch.tensor(0), x[0]))[1]


def recurrent(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    def step(h: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        h = (part + h @ w).tanh()
        return h, h * 2

    last, every = ops.scan(step, torch.zeros(x.shape[1]), x)
    (every.square().mean() + last.sum()).backward()
    return last, every


def backwards(x: Tensor, w: Tensor) -> Any:
    def step(c: dict[str, Tensor], part: Tensor) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        return {"sum": c["sum"] * 0.5 + part}, (c["sum"] + part, part * w[0, 0])

    return ops.scan(step, {"sum": torch.zeros(x.shape[0])}, x, dim=1, reverse=True)


def mapped(x: Tensor, w: Tensor) -> Tensor:
    y = ops.map(lambda row, weight: (row @ weight).softmax(-1), x, w)
    y.square().sum().backward()
    return y


def checkpointed(x: Tensor, w: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    def step(h: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        h = (part + h @ w).tanh()
        return h, h

    y: Any = checkpoint(lambda a: ops.scan(step, torch.zeros(a.shape[1]), a)[1], x, use_reentrant=False)
    y.square().sum().backward()
    return y


def straight_through(x: Tensor, w: Tensor) -> Tensor:
    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            return a.round()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0] * 2

    def frozen(a: Tensor) -> Tensor:
        with torch.no_grad():
            scale = a @ w
        return scale * Round.apply(a @ w)

    y = ops.cond(x.sum() < 0, lambda a: a @ w, frozen, (x,))
    y.sum().backward()
    return y


def written(x: Tensor, w: Tensor) -> Tensor:
    """In-place ops on what a branch made, and on what came of it."""

    def body(a: Tensor) -> Tensor:
        b = a @ w
        b[0] = 0
        b[:, 1].mul_(3)
        return b.add_(1)

    y = ops.cond(x.sum() > 0, body, lambda a: a, (x,)).clone()
    y[:2] *= 2
    return y


class Layers(nn.Module):
    """A stack of layers as one scan over their stacked weights."""

    def __init__(self, layers: int = 3, width: int = 6) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(layers, width, 2 * width) * 0.3)
        self.down = nn.Parameter(torch.randn(layers, 2 * width, width) * 0.3)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        def layer(h: Tensor, weights: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            up, down = weights
            h = h + F.gelu(self.norm(h) @ up) @ down
            return h, h.mean()

        y, means = ops.scan(layer, x, (self.up, self.down))
        return y + means.sum()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def plainly(function: Callable[..., Any], *args: Any) -> Any:
    with mock.patch.dict(globals(), ops=Plain):
        return function(*args)


def agree(have: Any, want: Any) -> None:
    for a, b in zip(pytree.tree_leaves(have), pytree.tree_leaves(want), strict=True):
        if isinstance(b, Tensor):
            torch.testing.assert_close(torch.as_tensor(a).detach(), b.detach(), rtol=2e-5, atol=2e-6)
        else:
            assert a == b
