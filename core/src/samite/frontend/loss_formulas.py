"""Losses whose kernels take a whole batch, as sums: then the batch may be split, and a mean has a global count."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

__all__ = ["loss_formulas"]

aten = torch.ops.aten
_MEAN = 1  # at::Reduction


def _spread(grad: Tensor, rows: int, reduction: int) -> Tensor:
    """The gradient of a loss as a column, one entry a row."""
    column = grad.reshape(-1, 1)
    return column / rows if reduction == _MEAN else column


def _multi_margin_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    scores, labels = (x if x.dim() == 2 else x.reshape(1, -1)), target.reshape(-1, 1)
    rows, classes = scores.shape
    own = torch.arange(classes, device=x.device) == labels
    excess = (margin - scores.gather(1, labels) + scores).clamp(min=0)
    slope = (excess > 0).to(x.dtype) if p == 1 else 2 * excess
    if weight is not None:
        slope = slope * weight[labels.view(-1)].unsqueeze(1)
    slope = torch.where(own, torch.zeros((), dtype=x.dtype, device=x.device), slope) / classes
    slope = torch.where(own, -slope.sum(1, keepdim=True), slope)
    return (slope * _spread(grad, rows, reduction)).view(x.shape)


def _multilabel_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    """Labels stand before the first -1 of a row. Every label's score shall be above all others' by 1."""
    scores, labels = (x if x.dim() == 2 else x.reshape(1, -1)), (target if x.dim() == 2 else target.reshape(1, -1))
    rows, classes = scores.shape
    given = (labels < 0).to(torch.int64).cumsum(1) == 0
    places = labels.clamp(min=0)
    short = 1 - scores.gather(1, places).unsqueeze(2) + scores.unsqueeze(1) > 0
    pairs = (short & given.unsqueeze(2) & (is_target.view(rows, 1, classes) == 0)).to(x.dtype)
    slope = pairs.sum(1).scatter_add(1, places, -pairs.sum(2)) / classes
    return (slope * _spread(grad, rows, reduction)).view(x.shape)


def _chunked() -> dict[Any, Callable[..., Any]]:
    """`F.linear_cross_entropy` by chunks of the batch: ops of torch that are written in Python, in torches that have
    them."""
    name = "torch.nn.modules.linear_cross_entropy"
    if importlib.util.find_spec(name) is None:
        return {}
    ops = [v for v in vars(importlib.import_module(name)).values() if isinstance(v, CustomOpDef)]
    return {op._opoverload: op._init_fn for op in ops}


def loss_formulas() -> dict[Any, Callable[..., Any]]:
    return {
        **_chunked(),
        aten.multi_margin_loss_backward.default: _multi_margin_loss_backward,
        aten.multilabel_margin_loss_backward.default: _multilabel_margin_loss_backward,
    }
