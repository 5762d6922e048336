"""`nn.Linear` on distributed tensors as one op forward and one backward.

torch makes thirteen of it, nine of which move nothing; each is dispatched through Python, and in a small model that is
as much work as the products. So `distribute_module` makes a `Linear` of every `nn.Linear`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.autograd import forward_ad

from samite.eager.calls import Facts
from samite.tensor.tensor import Tensor

__all__ = ["Linear"]

_transforms: Any = cast(Any, torch._C)._functorch


class Linear(nn.Linear):
    """What `nn.Linear` is in every other respect, a checkpoint's and a pickle's included."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        operands: tuple[Any, ...] = input, self.weight, self.bias
        if all(x is None or type(x) is Tensor for x in operands) and _is_plain_call():
            return _Linear.apply(*operands)
        return super().forward(input)


def _is_plain_call() -> bool:
    """Whether nobody wants to see the ops that torch makes of it: no transform, mode, or change of dtypes."""
    return (
        not torch.is_autocast_enabled("cpu")
        and torch._C._len_torch_dispatch_stack() == 0
        and _transforms.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


class _Forward:
    """An op for plans: `F.linear`."""

    facts = Facts(("input", "weight", "bias"), frozenset(), False)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    def __str__(self) -> str:
        return "linear"


class _Backward:
    """An op for plans: the gradients of input, weight and bias; None of one that is not wanted."""

    facts = Facts(("grad", "input", "weight", "of_input", "of_weight", "of_bias"), frozenset(), False)

    def __call__(
        self, grad: Any, x: Any, weight: Any, of_input: bool, of_weight: bool, of_bias: bool
    ) -> tuple[torch.Tensor | None, ...]:
        flat = grad.reshape(-1, grad.shape[-1])
        return (
            (flat @ weight).reshape(x.shape) if of_input else None,
            flat.t() @ x.reshape(-1, x.shape[-1]) if of_weight else None,
            flat.sum(0) if of_bias else None,
        )

    def __str__(self) -> str:
        return "the gradients of linear"


_FORWARD, _BACKWARD = _Forward(), _Backward()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return Tensor.__torch_dispatch__(_FORWARD, (), (x, weight, bias), None)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        operands = (*gradients, *ctx.saved_tensors, *ctx.needs_input_grad)
        if torch.is_grad_enabled():  # and so this is to be differentiated again
            return _BACKWARD(*operands)
        return Tensor.__torch_dispatch__(_BACKWARD, (), operands, None)
