"""Random functions of torch as counter-based numbers (`samite.ir.random`), for captures and for their oracle.

The n-th random op of a step draws `philox_uniform(seed, n, size)`. A recomputed region (activation checkpointing) must
draw the numbers of its first run: torch has it restore the RNG state first, and here the RNG state *is* n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import Tensor

from samite.errors import CaptureError
from samite.frontend import distributions
from samite.frontend.random_arguments import INTEGERS, Handler, bind, finish, refuse, size_of
from samite.frontend.source import user_line
from samite.ir.random import philox_uniform

__all__ = ["RandomOps"]

_REFUSED = (torch.binomial, torch.poisson, Tensor.random_)
"""What needs an unknown number of draws, or more bits than there are."""


class RandomOps:
    """The random ops of one step: `seed` is a 0-d int64 tensor; `handlers` maps torch's functions to stand-ins."""

    def __init__(self, seed: Tensor) -> None:
        self._seed, self._drawn, self._forbidden = seed, 0, ""
        self.handlers: dict[Any, Handler] = {
            torch.dropout: self._dropout,
            torch.dropout_: self._dropout_,
            torch.native_dropout: self._native_dropout,
            torch.feature_dropout: self._feature_dropout,
            torch.feature_dropout_: self._feature_dropout_,
            torch.rand: self._rand,
            torch.rand_like: self._rand_like,
            torch.randn: self._randn,
            torch.randn_like: self._randn_like,
            torch.randint: self._randint,
            torch.bernoulli: self._bernoulli,
            Tensor.bernoulli: self._bernoulli,
            Tensor.bernoulli_: self._bernoulli_,
            Tensor.uniform_: self._uniform_,
            Tensor.normal_: self._normal_,
        }
        self.handlers |= distributions.handlers(self) | dict.fromkeys(_REFUSED, refuse)

    @contextmanager
    def rng_state(self) -> Iterator[None]:
        """Let torch's global RNG state be the number of the next op; reseeding is refused."""

        def get() -> _Drawn:
            return _Drawn(self._drawn)

        def put(state: object) -> None:
            if not isinstance(state, _Drawn):
                _refuse_seed()
            self._drawn = state.count

        with (
            mock.patch.object(torch, "get_rng_state", get),
            mock.patch.object(torch, "set_rng_state", put),
            mock.patch.object(torch.random, "get_rng_state", get),
            mock.patch.object(torch.random, "set_rng_state", put),
            mock.patch.object(torch, "manual_seed", _refuse_seed),
        ):
            yield

    @contextmanager
    def forbidden(self, where: str) -> Iterator[None]:
        """Refuse random ops within: ops are counted when a step is traced, not as often as a loop runs them."""
        before, self._forbidden = self._forbidden, where
        try:
            yield
        finally:
            self._forbidden = before

    def uniform(self, size: Sequence[int]) -> Tensor:
        """float32 in [0, 1), of the next op."""
        if self._forbidden:
            raise CaptureError(
                f"random numbers are drawn inside {self._forbidden}",
                where=user_line(),
                help="draw them before, and pass them in: for scan and map as one of the tensors that are sliced",
            )
        number, self._drawn = self._drawn, self._drawn + 1
        return philox_uniform(self._seed, number, list(size))

    def normal(self, size: Sequence[int]) -> Tensor:
        """float32 from N(0, 1): Box-Muller of two uniforms."""
        radius = (-2.0 * (1.0 - self.uniform(size)).log()).sqrt()
        return radius * (2.0 * math.pi * self.uniform(size)).cos()

    def dropout(self, x: Tensor, p: float, mask_size: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """`x` with its elements zeroed with probability p and the others scaled, and which were kept."""
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        kept = self.uniform(x.shape if mask_size is None else mask_size) >= p
        scaled = x / (1.0 - p) if p < 1.0 else x
        return torch.where(kept, scaled, torch.zeros((), dtype=x.dtype, device=x.device)), kept

    def _dropout(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, p, train = bind(("input", "p", "train"), args, kwargs)
        return self.dropout(x, p)[0] if train and p > 0.0 else x

    def _dropout_(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return args[0].copy_(self._dropout(func, args, kwargs))

    def _native_dropout(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, p, train = bind(("input", "p", "train"), args, kwargs)
        return self.dropout(x, p) if train else (x, torch.ones_like(x, dtype=torch.bool))

    def _feature_dropout(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, p, train = bind(("input", "p", "train"), args, kwargs)
        size = [*x.shape[:2], *[1] * (x.dim() - 2)]
        return self.dropout(x, p, size)[0] if train and p > 0.0 else x

    def _feature_dropout_(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return args[0].copy_(self._feature_dropout(func, args, kwargs))

    def _rand(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return finish(self.uniform(size_of(args, kwargs)), kwargs, uniform=True)

    def _randn(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return finish(self.normal(size_of(args, kwargs)), kwargs)

    def _rand_like(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        like = args[0] if args else kwargs["input"]
        return finish(self.uniform(like.shape), {"dtype": like.dtype, **kwargs}, uniform=True)

    def _randn_like(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        like = args[0] if args else kwargs["input"]
        return finish(self.normal(like.shape), {"dtype": like.dtype, **kwargs})

    def _randint(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        size = kwargs.get("size", args[-1] if args else ())
        bounds: list[Any] = [a for a in args if isinstance(a, INTEGERS)]
        bounds += [kwargs[k] for k in ("low", "high") if k in kwargs]
        low, high = bounds if len(bounds) == 2 else (0, *bounds)
        if high - low > 1 << 24:
            refuse(func, args, kwargs)
        drawn = (self.uniform(size) * (high - low)).floor() + low
        return finish(drawn, {"dtype": torch.int64, **kwargs})

    def _bernoulli(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, p = bind(("input", "p"), args, kwargs, p=None)
        return finish(self.uniform(x.shape) < (x if p is None else p), {"dtype": x.dtype, **kwargs})

    def _bernoulli_(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, p = bind(("self", "p"), args, kwargs, p=0.5)
        return x.copy_(finish(self.uniform(x.shape) < p, {"dtype": x.dtype, **kwargs}))

    def _uniform_(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, low, high = bind(("self", "from", "to"), args, kwargs, **{"from": 0.0, "to": 1.0})
        return x.copy_(finish(self.uniform(x.shape) * (high - low) + low, {"dtype": x.dtype, **kwargs}))

    def _normal_(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        x, mean, std = bind(("self", "mean", "std"), args, kwargs, mean=0.0, std=1.0)
        return x.copy_(finish(self.normal(x.shape) * std + mean, {"dtype": x.dtype, **kwargs}))


@dataclass(frozen=True)
class _Drawn:
    """What stands for torch's RNG state: how many random ops the step has drawn."""

    count: int


def _refuse_seed(*_: Any) -> NoReturn:
    raise CaptureError(
        "the random number generator is seeded inside the step",
        where=user_line(),
        help="seed outside of it: a captured step draws counter-based numbers from a seed of its own",
    )
