"""One parameter's update by stochastic gradient descent as one device-neutral op, `samite::sgd` or `sgd_momentum`.

    sgd(param, grad, numbers, decays, maximize) -> param
    sgd_momentum(param, grad, buffer?, numbers, decays, nesterov, maximize) -> (param, buffer)

`param`, `grad` and `buffer` (absent before the first step) have one shape and one floating dtype. `numbers` are lr,
momentum, dampening and weight_decay as a 1-d float64, since torch.optim computes with Python's numbers; `decays` says
that weight_decay is to be looked at. The arithmetic is that of `torch.optim.SGD`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "sgd", "sgd_into", "sgd_momentum", "sgd_momentum_into", "sgd_momentum_reference", "sgd_reference",
]  # fmt: skip

_lib = torch.library.Library("samite", "FRAGMENT")
_lib.define("sgd(Tensor param, Tensor grad, Tensor numbers, bool decays, bool maximize) -> Tensor")
_lib.define(
    "sgd_momentum(Tensor param, Tensor grad, Tensor? buffer, Tensor numbers, bool decays, bool nesterov, bool maximize)"
    " -> (Tensor, Tensor)"
)


def sgd_reference(param: Tensor, grad: Tensor, numbers: Tensor, decays: bool, maximize: bool) -> Tensor:
    """`samite::sgd` in plain torch ops that read no data: its definition, and what runs on devices without a kernel."""
    lr, _, _, weight_decay = numbers.unbind()
    return _sum(param, _direction(param, grad, weight_decay, decays, maximize), -lr)


def sgd_momentum_reference(
    param: Tensor,
    grad: Tensor,
    buffer: Tensor | None,
    numbers: Tensor,
    decays: bool,
    nesterov: bool,
    maximize: bool,
) -> tuple[Tensor, Tensor]:
    """The same of `samite::sgd_momentum`."""
    lr, momentum, dampening, weight_decay = numbers.unbind()
    grad = _direction(param, grad, weight_decay, decays, maximize)
    if buffer is None:
        buffer = grad.clone()
    else:
        buffer = _sum((buffer * momentum).to(param.dtype), grad, 1 - dampening)
    return _sum(param, _sum(grad, buffer, momentum) if nesterov else buffer, -lr), buffer


def _direction(param: Tensor, grad: Tensor, weight_decay: Tensor, decays: bool, maximize: bool) -> Tensor:
    grad = -grad if maximize else grad
    return _sum(grad, param, weight_decay) if decays else grad


def _sum(x: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
    """`x.add(y, alpha=alpha)`, which rounds once."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) + y.to(wide) * alpha).to(x.dtype)


# On the CPU: torch.optim's own sequence of ops, and so its bits. It makes no temporaries: until the new parameter is
# written, its memory holds the gradient. (`_fused_sgd_` updates in place, so its operands would be copied first, which
# takes longer.)


def sgd_into(
    into: Sequence[Tensor], param: Tensor, grad: Tensor, numbers: Tensor, decays: bool, maximize: bool
) -> Tensor:
    """The result of `samite::sgd` written into one tensor, which may not be an operand."""
    (made,) = into
    lr, _, _, weight_decay = numbers.tolist()
    grad = _direction_into(made, param, grad, weight_decay if decays else 0.0, maximize)
    return torch.add(param, grad, alpha=-lr, out=made)


def sgd_momentum_into(
    into: Sequence[Tensor],
    param: Tensor,
    grad: Tensor,
    buffer: Tensor | None,
    numbers: Tensor,
    decays: bool,
    nesterov: bool,
    maximize: bool,
) -> tuple[Tensor, Tensor]:
    """The results of `samite::sgd_momentum` written into two tensors, none of which may be an operand."""
    made, new_buffer = into
    lr, momentum, dampening, weight_decay = numbers.tolist()
    grad = _direction_into(made, param, grad, weight_decay if decays else 0.0, maximize)
    if buffer is None:
        new_buffer.copy_(grad)
    else:
        torch.mul(buffer, momentum, out=new_buffer).add_(grad, alpha=1 - dampening)
    grad = torch.add(grad, new_buffer, alpha=momentum, out=made) if nesterov else new_buffer
    return torch.add(param, grad, alpha=-lr, out=made), new_buffer


def _direction_into(made: Tensor, param: Tensor, grad: Tensor, weight_decay: float, maximize: bool) -> Tensor:
    if maximize:
        grad = torch.neg(grad, out=made)
    return torch.add(grad, param, alpha=weight_decay, out=made) if weight_decay != 0 else grad


def _sgd(param: Tensor, grad: Tensor, numbers: Tensor, decays: bool, maximize: bool) -> Tensor:
    return sgd_into((torch.empty_like(param),), param, grad, numbers, decays, maximize)


def _sgd_momentum(
    param: Tensor, grad: Tensor, buffer: Tensor | None, numbers: Tensor, decays: bool, nesterov: bool, maximize: bool
) -> tuple[Tensor, Tensor]:
    into = (torch.empty_like(param), torch.empty_like(param))
    return sgd_momentum_into(into, param, grad, buffer, numbers, decays, nesterov, maximize)


_lib.impl("sgd", sgd_reference, "CompositeExplicitAutograd")
_lib.impl("sgd", _sgd, "CPU")
_lib.impl("sgd_momentum", sgd_momentum_reference, "CompositeExplicitAutograd")
_lib.impl("sgd_momentum", _sgd_momentum, "CPU")


@torch.library.register_fake("samite::sgd")
def _(param: Tensor, grad: Tensor, numbers: Tensor, decays: bool, maximize: bool) -> Tensor:
    return torch.empty_like(param)


@torch.library.register_fake("samite::sgd_momentum")
def _(
    param: Tensor, grad: Tensor, buffer: Tensor | None, numbers: Tensor, decays: bool, nesterov: bool, maximize: bool
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(param), torch.empty_like(param)


sgd = torch.ops.samite.sgd.default
sgd_momentum = torch.ops.samite.sgd_momentum.default
