"""Ops that reach the dispatcher outside of a capture only, in terms of those that have rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from samite.ir.sdpa import sdpa, sdpa_backward

__all__ = ["more"]

aten = torch.ops.aten


def _empty_like(x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """Memory of no particular content is zeros: then it is the same on every rank."""
    return aten.full.default(list(x.shape), 0, dtype=dtype or x.dtype)


def _new_empty(x: Tensor, size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Tensor:
    return aten.full.default(list(size), 0, dtype=dtype or x.dtype)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The kernel of the CPU, which torch chooses where there is no dropout."""
    return sdpa(q, k, v, attn_mask, is_causal, _scale(q, scale), False)


def _attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return sdpa_backward(grad_out, q, k, v, attn_mask, out, logsumexp, is_causal, _scale(q, scale), False)


def _scale(q: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale


@cache
def more() -> dict[Any, Callable[..., Any]]:
    """op -> its decomposition, beside those of captures."""
    return {
        aten.empty_like.default: _empty_like,
        aten.new_empty.default: _new_empty,
        aten.new_empty_strided.default: _new_empty,
        aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    }
