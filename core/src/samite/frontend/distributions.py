"""torch's distributions as functions of counter-based uniform numbers.

With `u` the next `philox_uniform` (in [0, 1), so 1 - u is not 0), `n` the next normal number (two of them), `w` a wide
uniform, u1 + u2 / 2**24 in float64:

    exponential   -log(1 - u) / lambd             geometric     max(1, ceil(log(1 - u) / log(1 - p)))
    cauchy        median + sigma tan(pi (u - ½))  log_normal    exp(mean + std n)
    normal        mean + std n                    randperm      the stable order of n numbers w
    randint_like  low + floor(u (high - low))     rrelu         x (lower + u (upper - lower)) where x <= 0
    multinomial   the first num_samples of p / max(-log(1 - u), 2**-25), largest first; with replacement, the places of
                  floor(w total) in the sums of round(p / max(p) 2**38): integers, so that no order of summation counts
    alpha_dropout x kept where u >= p, else alpha' (torch's constants), scaled and shifted to keep mean and variance
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from samite.frontend.random_arguments import Handler, bind, finish, refuse

__all__ = ["Draws", "handlers"]

ALPHA = 1.7580993408473766
"""torch's: minus the value that SELU tends to."""
WIDEST = 1 << 24
"""The largest range of integers that one uniform number reaches all of."""


class Draws(Protocol):
    """Where the numbers are from: each call is the next random op."""

    def uniform(self, size: Sequence[int]) -> Tensor: ...
    def normal(self, size: Sequence[int]) -> Tensor: ...


def handlers(draws: Draws) -> dict[Any, Handler]:
    """Stand-ins by torch's function."""
    made = _Distributions(draws)
    found: dict[Any, Handler] = {
        torch.normal: made.normal,
        torch.multinomial: made.multinomial,
        Tensor.multinomial: made.multinomial,
        torch.randperm: made.randperm,
        torch.randint_like: made.randint_like,
        torch.rrelu: made.rrelu,
        torch.rrelu_: _in_place(made.rrelu),
        torch.alpha_dropout: made.alpha_dropout,
        torch.alpha_dropout_: _in_place(made.alpha_dropout),
        torch.feature_alpha_dropout: made.feature_alpha_dropout,
        torch.feature_alpha_dropout_: _in_place(made.feature_alpha_dropout),
    }
    for name in ("exponential_", "geometric_", "cauchy_", "log_normal_"):
        found[getattr(Tensor, name)] = getattr(made, name)
    return found


def _in_place(handler: Handler) -> Handler:
    def handle(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return args[0].copy_(handler(func, args, kwargs))

    return handle


class _Distributions:
    def __init__(self, draws: Draws) -> None:
        self.draws = draws

    def _log(self, size: Sequence[int]) -> Tensor:
        """log(1 - u)."""
        return (1.0 - self.draws.uniform(size)).log()

    def _wide(self, size: Sequence[int]) -> Tensor:
        return self.draws.uniform(size).double() + self.draws.uniform(size).double() * 2.0**-24

    def exponential_(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, rate = bind(("self", "lambd"), args, kwargs, lambd=1.0)
        return _write(x, -self._log(x.shape) / rate, kwargs)

    def geometric_(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, p = bind(("self", "p"), args, kwargs)
        rate = math.log1p(-p) if p < 1 else -math.inf
        return _write(x, (self._log(x.shape) / rate).ceil().clamp(min=1), kwargs)

    def cauchy_(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, median, sigma = bind(("self", "median", "sigma"), args, kwargs, median=0.0, sigma=1.0)
        return _write(x, (math.pi * (self.draws.uniform(x.shape) - 0.5)).tan() * sigma + median, kwargs)

    def log_normal_(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, mean, std = bind(("self", "mean", "std"), args, kwargs, mean=1.0, std=2.0)
        return _write(x, (self.draws.normal(x.shape) * std + mean).exp(), kwargs)

    def normal(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        mean, std, size = bind(("mean", "std", "size"), args, kwargs, mean=0.0, std=1.0, size=None)
        if kwargs.get("out") is not None:
            refuse(func, args, kwargs)
        given = [t for t in (mean, std) if isinstance(t, Tensor)]
        shape = torch.broadcast_shapes(*(t.shape for t in given)) if given else size
        drawn = self.draws.normal(shape) * _value(std) + _value(mean)
        dtype = {"dtype": given[0].dtype} if given else {}
        made = finish(drawn, {**dtype, **kwargs})
        for parameter in given:  # torch gives it a gradient of zeros
            made = torch.where(torch.zeros((), dtype=torch.bool), parameter, made)
        return made

    def multinomial(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        names = ("input", "num_samples", "replacement")
        p, count, again = bind(names, args, kwargs, replacement=False)
        p = p.detach()
        if count == 1 or not again:
            scores = p / (-self._log(p.shape)).clamp(min=2.0**-25)
            return finish(scores.topk(count, -1)[1], {**kwargs, "dtype": torch.int64})
        largest = p.amax(-1, keepdim=True).double()
        sums = (p.double() / largest * 2.0**38).round().long().cumsum(-1)
        wanted = (self._wide([*p.shape[:-1], count]) * sums[..., -1:]).floor().long()
        return finish(torch.searchsorted(sums, wanted, right=True), {**kwargs, "dtype": torch.int64})

    def randperm(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        (count,) = bind(("n",), args, kwargs)
        order = self._wide([count]).sort(stable=True)[1]
        return finish(order, {"dtype": torch.int64, **kwargs})

    def randint_like(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, *rest = args if args else (kwargs["input"],)
        bounds = [*rest, *(kwargs[k] for k in ("low", "high") if k in kwargs)]
        low, high = bounds if len(bounds) == 2 else (0, *bounds)
        if high - low > WIDEST:
            refuse(func, args, kwargs)
        drawn = (self.draws.uniform(x.shape) * (high - low)).floor() + low
        return finish(drawn, {"dtype": x.dtype, **kwargs})

    def rrelu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        names = ("input", "lower", "upper", "training")
        x, lower, upper, training = bind(names, args, kwargs, lower=1 / 8, upper=1 / 3, training=False)
        if not training:
            return torch.where(x > 0, x, x * ((lower + upper) / 2))
        slope = (self.draws.uniform(x.shape) * (upper - lower) + lower).to(x.dtype)
        return torch.where(x > 0, x, x * slope)

    def alpha_dropout(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, p, train = bind(("input", "p", "train"), args, kwargs)
        return self._alpha_dropout(x, p, train, x.shape)

    def feature_alpha_dropout(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, p, train = bind(("input", "p", "train"), args, kwargs)
        return self._alpha_dropout(x, p, train, [*x.shape[:2], *[1] * (x.dim() - 2)])

    def _alpha_dropout(self, x: Tensor, p: float, train: bool, size: Sequence[int]) -> Tensor:
        if not train or p == 0.0 or not x.numel():
            return x
        if p == 1.0:
            return x * torch.zeros((), dtype=x.dtype)
        kept = (self.draws.uniform(size) >= p).to(x.dtype)
        scale = 1.0 / math.sqrt((ALPHA * ALPHA * p + 1.0) * (1.0 - p))
        return x * (kept * scale) + ((kept - 1.0) * (ALPHA * scale) + ALPHA * scale * p)


def _write(x: Tensor, drawn: Tensor, kwargs: dict[str, Any]) -> Tensor:
    return x.copy_(finish(drawn, {"dtype": x.dtype, "generator": kwargs.get("generator")}))


def _value(parameter: Any) -> Any:
    return parameter.detach() if isinstance(parameter, Tensor) else parameter
