"""Optimizer steps that a capture takes as one op a parameter.

`torch.optim.Adam`, `AdamW`, `SGD` and their subclasses end in one function each, which gets lists of tensors and the
numbers of a group: `Number`s from `samite.frontend.groups`, or what other code computed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from samite.frontend.groups import Number
from samite.frontend.watching import unwatched
from samite.ir.adam import adam, amsgrad
from samite.ir.sgd import sgd, sgd_momentum

__all__ = ["fused_updates"]

Separate = Callable[..., None]


@contextmanager
def fused_updates() -> Iterator[None]:
    """Within, these optimizers update each parameter by `samite::adam`, `amsgrad`, `sgd` or `sgd_momentum`."""
    modules: list[Any] = [importlib.import_module(f"torch.optim.{name}") for name in ("adam", "sgd")]  # hidden names
    with (
        mock.patch.object(modules[0], "_single_tensor_adam", unwatched(_adam_or(modules[0]._single_tensor_adam))),
        mock.patch.object(modules[1], "_single_tensor_sgd", unwatched(_sgd_or(modules[1]._single_tensor_sgd))),
    ):
        yield


def _adam_or(separate: Separate) -> Separate:
    def step(
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        max_exp_avg_sqs: Sequence[Tensor],
        state_steps: Sequence[Tensor],
        *scaling: Any,
        **options: Any,
    ) -> None:
        moments = [exp_avgs, exp_avg_sqs, *([max_exp_avg_sqs] if options["amsgrad"] else [])]
        states = list(zip(params, *moments, strict=True))
        if options["differentiable"] or not all(map(_alike, states, grads)):
            lists = (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps)
            separate(*lists, *scaling, **_plain(options))
            return
        numbers = _packed([options[name] for name in ("lr", "beta1", "beta2", "eps", "weight_decay")])
        decoupled = bool(options.get("decoupled_weight_decay", False))
        flags = _decays(options["weight_decay"]), decoupled, bool(options["maximize"])
        update = amsgrad if options["amsgrad"] else adam
        for state, grad, count in zip(states, grads, state_steps, strict=True):
            count += 1
            made = update(state[0], grad, *state[1:], count, numbers, *flags)
            for target, value in zip(state, made, strict=True):
                target.copy_(value)

    return step


def _sgd_or(separate: Separate) -> Separate:
    def step(
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        buffers: list[Tensor | None],
        *scaling: Any,
        **options: Any,
    ) -> None:
        momentum, states = options["momentum"], zip(params, buffers or params, strict=True)
        if isinstance(momentum, Tensor) or not all(map(_alike, states, grads)):
            separate(params, grads, buffers, *scaling, **_plain(options))
            return
        numbers = _packed([options[name] for name in ("lr", "momentum", "dampening", "weight_decay")])
        decays, nesterov = _decays(options["weight_decay"]), bool(options["nesterov"])
        maximize = bool(options["maximize"])
        for at, (param, grad) in enumerate(zip(params, grads, strict=True)):
            if momentum == 0:
                param.copy_(sgd(param, grad, numbers, decays, maximize))
                continue
            before = buffers[at]
            value, buffer = sgd_momentum(param, grad, before, numbers, decays, nesterov, maximize)
            param.copy_(value)
            buffers[at] = buffer if before is None else before.copy_(buffer)

    return step


def _alike(state: Sequence[Tensor | None], grad: Tensor) -> bool:
    """Whether the tensors have one floating dtype, as the ops want it: complex numbers are another matter."""
    dtypes = {grad.dtype, *(x.dtype for x in state if x is not None)}
    return len(dtypes) == 1 and grad.dtype.is_floating_point


def _decays(weight_decay: Any) -> bool:
    return True if isinstance(weight_decay, Tensor) else weight_decay != 0


def _packed(values: Sequence[Any]) -> Tensor:
    """The numbers as one float64 tensor: the argument itself, if these are all of a group's, in order."""
    first = values[0]
    if isinstance(first, Number) and all(
        isinstance(x, Number) and x.group is first.group and x.at == at for at, x in enumerate(values)
    ):
        assert first.group.numbers is not None
        return first.group.numbers
    return torch.stack([_as_tensor(x) for x in values])


def _as_tensor(value: Any) -> Tensor:
    if isinstance(value, Number):
        return value.tensor
    if isinstance(value, Tensor):
        return value.reshape(()).to(torch.float64)
    return torch.tensor(float(value), dtype=torch.float64)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` for torch's own code, which computes with numbers."""
    return {key: value.plain() if isinstance(value, Number) else value for key, value in options.items()}
