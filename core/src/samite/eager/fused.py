"""The fused optimizers (`torch.optim.AdamW(..., fused=True)`) as ops on lists, each of which has rules.

Steps are counted before these are called. A scaler's `grad_scale` divides the gradients, `found_inf` skips the step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["fused_parts"]

Tensors = list[Tensor]


def _adam(
    params: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    max_exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    decoupled: bool,
    lr: float | Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    if _skipped(found_inf):
        return
    lr, steps = float(lr), [float(step) for step in state_steps]
    grads = _scaled(grads, grad_scale, maximize=maximize)
    if weight_decay and decoupled:
        torch._foreach_mul_(params, 1 - lr * weight_decay)
    elif weight_decay:
        grads = _added(grads, params, weight_decay)
    torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
    torch._foreach_mul_(exp_avg_sqs, beta2)
    torch._foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
    if amsgrad:
        torch._foreach_maximum_(max_exp_avg_sqs, exp_avg_sqs)
    roots = torch._foreach_sqrt(max_exp_avg_sqs if amsgrad else exp_avg_sqs)
    torch._foreach_div_(roots, [(1 - beta2**step) ** 0.5 for step in steps])
    torch._foreach_add_(roots, eps)
    torch._foreach_addcdiv_(params, exp_avgs, roots, [-lr / (1 - beta1**step) for step in steps])


def _sgd(
    params: Tensors,
    grads: Tensors,
    momentum_buffers: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    if _skipped(found_inf):
        return
    grads = _scaled(grads, grad_scale, maximize=maximize)
    if weight_decay:
        grads = _added(grads, params, weight_decay)
    if momentum:
        if is_first_step:
            torch._foreach_copy_(momentum_buffers, grads)
        else:
            torch._foreach_mul_(momentum_buffers, momentum)
            torch._foreach_add_(momentum_buffers, grads, alpha=1 - dampening)
        grads = _added(grads, momentum_buffers, momentum) if nesterov else momentum_buffers
    torch._foreach_add_(params, grads, alpha=-float(lr))


def _adagrad(
    params: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: float | Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    if _skipped(found_inf):
        return
    grads = _scaled(grads, grad_scale, maximize=maximize)
    if weight_decay:
        grads = _added(grads, params, weight_decay)
    torch._foreach_addcmul_(state_sums, grads, grads, 1.0)
    roots = torch._foreach_sqrt(state_sums)
    torch._foreach_add_(roots, eps)
    rates = [float(lr) / (1 + (float(step) - 1) * lr_decay) for step in state_steps]
    torch._foreach_addcdiv_(params, grads, roots, [-rate for rate in rates])


def _skipped(found_inf: Tensor | None) -> bool:
    return found_inf is not None and bool(found_inf)


def _scaled(grads: Tensors, scale: Tensor | None, *, maximize: bool) -> Tensors:
    if scale is not None:
        torch._foreach_div_(grads, float(scale))
    return list(torch._foreach_neg(grads)) if maximize else grads


def _added(x: Tensors, y: Tensors, alpha: float) -> Tensors:
    return list(torch._foreach_add(x, y, alpha=alpha))


@cache
def fused_parts(func: Any) -> Callable[..., None] | None:
    """What a fused step is made of; None of any other op."""
    schema = getattr(func, "_schema", None)
    match schema.name if schema is not None else "":
        case "aten::_fused_adam_":
            return lambda *args, **kwargs: _adam(*args, decoupled=False, **kwargs)
        case "aten::_fused_adamw_":
            return lambda *args, **kwargs: _adam(*args, decoupled=True, **kwargs)
        case "aten::_fused_sgd_":
            return _sgd
        case "aten::_fused_adagrad_":
            return _adagrad
        case _:
            return None
