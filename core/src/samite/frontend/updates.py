"""Optimizer steps that a capture takes as one op a parameter."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from samite.ir.adam import adam

__all__ = ["fused_updates"]


@contextmanager
def fused_updates() -> Iterator[None]:
    """Within, `torch.optim.Adam`, `AdamW` and their subclasses update each parameter by `samite::adam`."""
    module: Any = importlib.import_module("torch.optim.adam")  # torch.optim hides the name
    with mock.patch.object(module, "_single_tensor_adam", _adam_or(module._single_tensor_adam)):
        yield


def _adam_or(separate: Callable[..., None]) -> Callable[..., None]:
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
        if not _fits(params, options):
            separate(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *scaling, **options)
            return
        rate: Any = options["lr"]
        for state in zip(params, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True):
            param, grad, exp_avg, exp_avg_sq, count = state
            count += 1
            lr = rate if isinstance(rate, Tensor) else torch.tensor(rate)
            made = adam(
                param, grad, exp_avg, exp_avg_sq, count, lr, float(options["beta1"]), float(options["beta2"]),
                float(options["eps"]), float(options["weight_decay"]),
                bool(options.get("decoupled_weight_decay", False)), bool(options["maximize"]),
            )  # fmt: skip
            for target, value in zip((param, exp_avg, exp_avg_sq), made, strict=True):
                target.copy_(value)

    return step


def _fits(params: Sequence[Tensor], options: dict[str, Any]) -> bool:
    """What the op does not do: the maximum of squares, other types, gradients of the update, betas that are tensors."""
    numbers = (options["beta1"], options["beta2"], options["weight_decay"], options["eps"])
    return not (
        options["amsgrad"]
        or options["differentiable"]
        or any(isinstance(n, Tensor) for n in numbers)
        or any(p.dtype not in (torch.float32, torch.float64) for p in params)
    )
