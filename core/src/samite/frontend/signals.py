"""`istft` and `ctc_loss`, which torch writes with checks and shapes that depend on data, without them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from samite.ir.ctc import ctc_loss

__all__ = ["ctc", "istft"]


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """`input` is ([n], frequency, frame) -> ([n], time). Windows that leave gaps give infinities there."""
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    window = torch.ones(width, dtype=input.real.dtype) if window is None else window
    left = (n_fft - width) // 2
    window = F.pad(window, (left, n_fft - width - left))
    frames = (input.unsqueeze(0) if input.dim() == 2 else input).transpose(1, 2)
    norm = "ortho" if normalized else None
    if return_complex:
        frames = torch.fft.ifft(frames, dim=-1, norm=norm)
    else:
        frames = torch.fft.irfft(frames[..., : n_fft // 2 + 1], n_fft, dim=-1, norm=norm)
    total = n_fft + hop * (frames.shape[1] - 1)
    added = _overlapped(frames * window, total, hop)
    envelope = _overlapped((window * window).expand(1, *frames.shape[1:]), total, hop)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else total - start
    made = added[:, start:end] / envelope[:, start:end]
    made = F.pad(made, (0, max(end - total, 0)))
    return made.squeeze(0) if input.dim() == 2 else made


def _overlapped(frames: Tensor, total: int, hop: int) -> Tensor:
    """The sums of frames (n, frame, time) that each start `hop` after the one before: (n, total)."""
    return torch.ops.aten.unfold_backward(frames, [frames.shape[0], total], 1, frames.shape[2], hop)


def ctc(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """`reduction` is torch's number of it: none, mean, sum."""
    lengths = [torch.as_tensor(given).to(torch.int64).reshape(-1) for given in (input_lengths, target_lengths)]
    batched = log_probs.dim() == 3
    if not batched:
        log_probs = log_probs.unsqueeze(1)
    loss, _ = ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)
    if zero_infinity:
        loss = torch.where(loss == torch.inf, torch.zeros((), dtype=loss.dtype), loss)
    if reduction == 1:
        return (loss / lengths[1].clamp(min=1).to(loss.dtype)).mean()
    if reduction == 2:
        return loss.sum()
    return loss if batched else loss.squeeze(0)
