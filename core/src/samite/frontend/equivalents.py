"""Functions of torch that look at data on the host, though what they give does not depend on it, in other words.

They check their arguments (`cov`, `one_hot`), or pick elements at places that the shapes fix (`combinations`), or their
gradients take an op that counts (`index_fill`, `x[mask] = value`). What they check is not checked here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from samite.frontend.random_arguments import Handler
from samite.frontend.signals import ctc, istft

__all__ = ["handlers"]


def handlers() -> dict[Any, Handler]:
    """By torch's function."""
    found: dict[Any, Callable[..., Any]] = {
        F.one_hot: _one_hot,
        torch.combinations: _combinations,
        torch.ctc_loss: ctc,
    }
    for name, function in (("cov", _cov), ("corrcoef", _corrcoef), ("istft", istft)):
        found |= {getattr(torch, name): function, getattr(Tensor, name): function}
    made: dict[Any, Handler] = {key: _handler(function) for key, function in found.items()}
    made |= dict.fromkeys((torch.narrow, Tensor.narrow), _narrow)
    made |= {torch.index_fill: _index_fill, Tensor.index_fill: _index_fill, Tensor.index_fill_: _in_place(_index_fill)}
    made |= dict.fromkeys((torch.index_put, Tensor.index_put), _index_put)
    made |= dict.fromkeys((torch.index_put_, Tensor.index_put_), _in_place(_index_put))
    made[Tensor.__setitem__] = _set_item
    return made


def _handler(function: Callable[..., Any]) -> Handler:
    def handle(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    return handle


def _in_place(handler: Handler) -> Handler:
    """`handler` gives NotImplemented where the function is to be called as it is."""

    def handle(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = handler(_itself, args, kwargs)
        return func(*args, **kwargs) if made is NotImplemented else args[0].copy_(made)

    return handle


def _itself(*_: Any, **__: Any) -> Any:
    return NotImplemented


def _cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    x = input.view(1, -1) if input.dim() < 2 else input
    weights = [w for w in (fweights, aweights) if w is not None]
    if not weights:
        norm: Any = max(x.shape[1] - correction, 0)
        centred = x - (x.sum(1) / x.shape[1]).unsqueeze(1)
        return torch.true_divide(centred @ centred.t().conj(), norm).squeeze()
    w = weights[0] if len(weights) == 1 else weights[0] * weights[1]
    total = w.sum()
    norm = total - correction * ((w * aweights).sum() / total if aweights is not None else 1)
    centred = x - ((x * w).sum(1) / total).unsqueeze(1)
    return torch.true_divide(centred @ (centred * w).t().conj(), norm.clamp(min=0)).squeeze()


def _corrcoef(input: Tensor) -> Tensor:
    c = _cov(input)
    if c.dim() == 0:
        return c / c
    d = c.diag()
    deviation = (d.real if d.is_complex() else d).sqrt()
    c = c / deviation.view(-1, 1) / deviation.view(1, -1)
    return torch.complex(c.real.clip(-1, 1), c.imag.clip(-1, 1)) if c.is_complex() else c.clip(-1, 1)


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        num_classes = int(tensor.max().item()) + 1  # refused, with the user's line
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, dtype=tensor.dtype)).to(torch.int64)


def _combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    chosen = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = list(chosen(range(len(input)), r))
    if not places or not r:
        return input.new_empty((0, r) if r else (0,))
    return input[torch.tensor(places)]


def _narrow(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """`start` may be a tensor."""
    given = {**dict(zip(("input", "dim", "start", "length"), args, strict=False)), **kwargs}
    start = given["start"]
    if not isinstance(start, Tensor):
        return func(*args, **kwargs)
    x, dim = given["input"], given["dim"]
    start = torch.where(start < 0, start + x.shape[dim], start)
    return x.index_select(dim, start + torch.arange(given["length"]))


def _index_fill(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """With a tensor as the value: its gradient would ask whether the indices are unique."""
    given = {**dict(zip(("input", "dim", "index", "value"), args, strict=False)), **kwargs}
    x, dim, value = given["input"], given["dim"], given["value"]
    if not isinstance(value, Tensor):
        return func(*args, **kwargs)
    size = x.shape[dim] if x.dim() else 1
    chosen = torch.zeros(size, dtype=torch.bool).index_fill(0, given["index"], True)
    return torch.where(_along(chosen, dim, x.dim()), value.to(x.dtype), x)


def _along(x: Tensor, dim: int, ndim: int) -> Tensor:
    return x.view([-1 if i == dim % ndim else 1 for i in range(ndim)])


def _index_put(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One value at the places of a mask: the gradient would select there, as many as there are."""
    given = {**dict(zip(("input", "indices", "values", "accumulate"), args, strict=False)), **kwargs}
    made = _masked(given["input"], given["indices"], given["values"], given.get("accumulate", False))
    return func(*args, **kwargs) if made is None else made


def _masked(x: Tensor, indices: Any, value: Any, accumulate: bool = False) -> Tensor | None:
    index = indices[0] if isinstance(indices, (tuple, list)) and len(indices) == 1 else indices
    single = isinstance(value, Tensor) and value.numel() == 1
    if not (isinstance(index, Tensor) and index.dtype == torch.bool and index.dim() and single):
        return None
    mask = index.view([*index.shape, *[1] * (x.dim() - index.dim())])
    value = value.reshape(()).to(x.dtype)
    return torch.where(mask, x + value if accumulate else value, x)


def _set_item(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    made = _masked(*args)
    if made is None:
        func(*args, **kwargs)
    else:
        args[0].copy_(made)
