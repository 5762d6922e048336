"""The CTC loss as ops whose shapes do not depend on data: `samite::ctc_loss` and its backward.

    ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity) -> (loss, log_alpha)
    ctc_loss_backward(grad, log_probs, targets, input_lengths, target_lengths, loss, log_alpha, blank, zero_infinity)
        -> the gradient of log_probs

Shapes: log_probs (t, n, c), targets (n, s), or all of them in one row (s), lengths (n) int64 -> loss (n), log_alpha
(n, t, 2 s + 1). torch's own ops make log_alpha as wide as the longest target, which only data tells; here there are
zeros behind it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ctc_loss"]

aten = torch.ops.aten

_lib = torch.library.Library("samite", "FRAGMENT")
_ARGUMENTS = "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths"
_lib.define(f"ctc_loss({_ARGUMENTS}, int blank, bool zero_infinity) -> (Tensor, Tensor)")
_lib.define(
    f"ctc_loss_backward(Tensor grad, {_ARGUMENTS}, Tensor loss, Tensor log_alpha, int blank, bool zero_infinity)"
    " -> Tensor"
)


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:
    loss, log_alpha = aten._ctc_loss.Tensor(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    width, steps = 2 * targets.shape[-1] + 1, log_probs.shape[0]
    log_alpha = F.pad(log_alpha, (0, width - log_alpha.shape[-1]))
    # The kernel leaves what is behind a target or an input as the memory was.
    written = torch.arange(width) <= 2 * target_lengths[:, None]
    written = written[:, None, :] & (torch.arange(steps) < input_lengths[:, None])[:, :, None]
    return loss.contiguous(), torch.where(written, log_alpha, torch.zeros((), dtype=log_alpha.dtype)).contiguous()


def _ctc_loss_backward(grad: Tensor, *arguments: Any) -> Tensor:
    return aten._ctc_loss_backward.Tensor(grad.contiguous(), *arguments).contiguous()


_lib.impl("ctc_loss", _ctc_loss, "CompositeExplicitAutograd")
_lib.impl("ctc_loss_backward", _ctc_loss_backward, "CompositeExplicitAutograd")

ctc_loss = torch.ops.samite.ctc_loss.default


@torch.library.register_fake("samite::ctc_loss")
def _(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:
    steps, batch, classes = log_probs.shape
    torch._check(0 <= blank < classes, lambda: f"ctc_loss: blank {blank} is none of {classes} classes")
    lengths = (tuple(input_lengths.shape), tuple(target_lengths.shape))
    torch._check(lengths == ((batch,), (batch,)), lambda: f"ctc_loss: lengths {lengths} for a batch of {batch}")
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, 2 * targets.shape[-1] + 1))


@torch.library.register_fake("samite::ctc_loss_backward")
def _(grad: Tensor, log_probs: Tensor, *_: Any) -> Tensor:
    return log_probs.new_empty(log_probs.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.blank, ctx.zero_infinity = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    made = torch.ops.samite.ctc_loss_backward(grad, *ctx.saved_tensors, ctx.blank, ctx.zero_infinity)
    return (made, *[None] * 5)


torch.library.register_autograd("samite::ctc_loss", _differentiate, setup_context=_save)
