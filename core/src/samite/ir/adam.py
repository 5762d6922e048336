"""One parameter's Adam or AdamW update as one device-neutral op, `samite::adam`.

    adam(param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, weight_decay, decoupled, maximize)
        -> (param, exp_avg, exp_avg_sq)

`param`, `grad`, `exp_avg`, `exp_avg_sq` have one shape; `step` (counted already) and `lr` are 0-d. The arithmetic is
that of `torch.optim.Adam` (Kingma & Ba 2015), with `decoupled` weight decay of `torch.optim.AdamW` (Loshchilov & Hutter
2019). As separate ops a step makes eight passes over every parameter, and eleven kernels for its step counter. Only for
float32 and float64: in shorter types torch.optim rounds after every op, and so must what is to give its numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["adam", "adam_into", "adam_reference"]

_lib = torch.library.Library("samite", "FRAGMENT")
_lib.define(
    "adam(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor step, Tensor lr, float beta1,"
    " float beta2, float eps, float weight_decay, bool decoupled, bool maximize) -> (Tensor, Tensor, Tensor)"
)

_FUSED_DTYPES = (torch.float32, torch.float64)

Updated = tuple[Tensor, Tensor, Tensor]


def adam_reference(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
) -> Updated:
    """`samite::adam` in plain torch ops: the definition, and what runs where torch has no fused kernel."""
    grad = -grad if maximize else grad
    if weight_decay != 0:
        param, grad = (param * (1 - lr * weight_decay), grad) if decoupled else (param, grad + weight_decay * param)
    exp_avg = torch.lerp(exp_avg, grad, 1 - beta1)
    exp_avg_sq = exp_avg_sq * beta2 + grad * grad * (1 - beta2)
    count = step.to(torch.float64)  # 0-d: it widens no result, but the powers need the digits
    step_size = lr / (1 - beta1**count)
    denominator = exp_avg_sq.sqrt() / (1 - beta2**count).sqrt() + eps
    return (param - step_size * exp_avg / denominator).to(param.dtype), exp_avg, exp_avg_sq


def adam_into(into: Updated, *operands: Any) -> Updated:
    """The update of `samite::adam`'s operands written into three tensors, none of which may be an operand.

    torch's fused CPU kernel does it where it can.
    """
    param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, weight_decay, decoupled, maximize = operands
    if any(t.dtype != param.dtype or t.dtype not in _FUSED_DTYPES for t in (param, grad, exp_avg, exp_avg_sq)):
        for target, value in zip(into, adam_reference(*operands), strict=True):
            target.copy_(value)
        return into
    for target, value in zip(into, (param, exp_avg, exp_avg_sq), strict=True):
        target.copy_(value)
    fused = torch.ops.aten._fused_adamw_ if decoupled else torch.ops.aten._fused_adam_
    fused(
        [into[0]], [grad], [into[1]], [into[2]], [], [step],
        lr=float(lr), beta1=beta1, beta2=beta2, weight_decay=weight_decay, eps=eps, amsgrad=False, maximize=maximize,
    )  # fmt: skip
    return into


def _adam(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *scalars: Any) -> Updated:
    into = (torch.empty_like(param), torch.empty_like(exp_avg), torch.empty_like(exp_avg_sq))
    return adam_into(into, param, grad, exp_avg, exp_avg_sq, *scalars)


_lib.impl("adam", adam_reference, "CompositeExplicitAutograd")
_lib.impl("adam", _adam, "CPU")


@torch.library.register_fake("samite::adam")
def _(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, lr: Tensor, *constants: float
) -> Updated:
    return torch.empty_like(param), torch.empty_like(exp_avg), torch.empty_like(exp_avg_sq)


adam = torch.ops.samite.adam.default
