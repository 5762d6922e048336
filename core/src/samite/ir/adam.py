"""One parameter's Adam or AdamW update as one device-neutral op, `samite::adam`, and `samite::amsgrad`.

    adam(param, grad, exp_avg, exp_avg_sq, step, numbers, decays, decoupled, maximize)
        -> (param, exp_avg, exp_avg_sq)
    amsgrad(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, step, numbers, decays, decoupled, maximize)
        -> (param, exp_avg, exp_avg_sq, max_exp_avg_sq)

The tensors have one shape and one floating dtype, but for `step` (0-d, counted already) and `numbers`: lr, beta1,
beta2, eps and weight_decay as a 1-d float64, since torch.optim computes with Python's numbers. `decays` says that
weight_decay is to be looked at. The arithmetic is that of `torch.optim.Adam` (Kingma & Ba 2015), with `decoupled`
weight decay of `torch.optim.AdamW` (Loshchilov & Hutter 2019), `amsgrad` with the maximum of Reddi et al. (2018);
types shorter than float32 are rounded after every op of torch.optim's. As separate ops a step makes eight passes over
every parameter, and eleven kernels for its step counter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["adam", "adam_into", "adam_reference", "amsgrad"]

_lib = torch.library.Library("samite", "FRAGMENT")
_FLAGS = "bool decays, bool decoupled, bool maximize"
_lib.define(
    f"adam(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor step, Tensor numbers, {_FLAGS})"
    " -> (Tensor, Tensor, Tensor)"
)
_lib.define(
    "amsgrad(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor max_exp_avg_sq, Tensor step,"
    f" Tensor numbers, {_FLAGS}) -> (Tensor, Tensor, Tensor, Tensor)"
)

_FUSED_DTYPES = (torch.float32, torch.float64)


def adam_reference(param: Tensor, grad: Tensor, *operands: Any) -> tuple[Tensor, ...]:
    """Both ops in plain torch ops that read no data: their definition, and what runs on devices without a kernel."""
    exp_avg, exp_avg_sq, *maximum, step, numbers, decays, decoupled, maximize = operands
    lr, beta1, beta2, eps, weight_decay = numbers.unbind()
    dtype = param.dtype
    wide = torch.promote_types(dtype, torch.float32)  # in which torch's kernels compute
    count = step.to(torch.float64)
    grad = -grad if maximize else grad
    if decays and decoupled:
        param = (param * (1 - lr * weight_decay)).to(dtype)
    elif decays:
        grad = (grad.to(wide) + weight_decay * param.to(wide)).to(dtype)
    g = grad.to(wide)
    exp_avg = torch.lerp(exp_avg.to(wide), g, (1 - beta1).to(wide)).to(dtype)
    scaled = (exp_avg_sq * beta2).to(dtype)
    exp_avg_sq = (scaled.to(wide) + g * g * (1 - beta2)).to(dtype)
    maximum = [torch.maximum(before, exp_avg_sq) for before in maximum]
    root = (maximum[0] if maximum else exp_avg_sq).sqrt()
    denominator = ((root / (1 - beta2**count).sqrt()).to(dtype) + eps).to(dtype)
    change = lr / (1 - beta1**count) * exp_avg.to(wide) / denominator.to(wide)
    return ((param.to(wide) - change).to(dtype), exp_avg, exp_avg_sq, *maximum)


def adam_into(into: Sequence[Tensor], param: Tensor, grad: Tensor, *operands: Any) -> Sequence[Tensor]:
    """The results of `samite::adam` or `amsgrad` written into as many tensors, none of which may be an operand.

    On the CPU: torch's fused kernel does it where there is one, else torch.optim's own sequence of ops.
    """
    exp_avg, exp_avg_sq, *maximum, step, numbers, decays, decoupled, maximize = operands
    lr, beta1, beta2, eps, weight_decay = numbers.tolist()
    for target, value in zip(into, (param, exp_avg, exp_avg_sq, *maximum), strict=True):
        target.copy_(value)
    if param.dtype not in _FUSED_DTYPES:
        decay = weight_decay if decays else 0.0
        _stepwise(into, -grad if maximize else grad, step.item(), (lr, beta1, beta2, eps), decay, decoupled)
        return into
    param, exp_avg, exp_avg_sq, *maximum = into
    fused = torch.ops.aten._fused_adamw_ if decoupled else torch.ops.aten._fused_adam_
    fused(
        [param], [grad], [exp_avg], [exp_avg_sq], maximum, [step],
        lr=lr, beta1=beta1, beta2=beta2, weight_decay=weight_decay if decays else 0.0, eps=eps,
        amsgrad=bool(maximum), maximize=maximize,
    )  # fmt: skip
    return into


def _stepwise(
    state: Sequence[Tensor],
    grad: Tensor,
    count: float,
    numbers: tuple[float, float, float, float],
    weight_decay: float,
    decoupled: bool,
) -> None:
    """What `torch.optim.adam._single_tensor_adam` does in place, op by op and so with its roundings."""
    param, exp_avg, exp_avg_sq, *maximum = state
    lr, beta1, beta2, eps = numbers
    if weight_decay != 0 and decoupled:
        param.mul_(1 - lr * weight_decay)
    elif weight_decay != 0:
        grad = grad.add(param, alpha=weight_decay)
    exp_avg.lerp_(grad, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    if maximum:
        torch.maximum(maximum[0], exp_avg_sq, out=maximum[0])
    root = (maximum[0] if maximum else exp_avg_sq).sqrt()
    denominator = (root / (1 - beta2**count) ** 0.5).add_(eps)
    param.addcdiv_(exp_avg, denominator, value=-lr / (1 - beta1**count))


def _empty(param: Tensor, grad: Tensor, *operands: Any) -> tuple[Tensor, ...]:
    moments: Sequence[Tensor] = operands[:-5]
    return (torch.empty_like(param), *map(torch.empty_like, moments))


def _on_the_cpu(*operands: Any) -> tuple[Tensor, ...]:
    return tuple(adam_into(_empty(*operands), *operands))


for _name in ("adam", "amsgrad"):
    _lib.impl(_name, adam_reference, "CompositeExplicitAutograd")
    _lib.impl(_name, _on_the_cpu, "CPU")
    torch.library.register_fake(f"samite::{_name}", _empty)

adam = torch.ops.samite.adam.default
amsgrad = torch.ops.samite.amsgrad.default
