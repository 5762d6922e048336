"""`torch.nn.functional.scaled_dot_product_attention` as `samite::sdpa`, or taken apart where that op has no form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from samite.frontend.random_arguments import Handler
from samite.frontend.random_ops import RandomOps
from samite.ir.sdpa import scores, sdpa

__all__ = ["handlers"]


def handlers(random: RandomOps) -> dict[Any, Handler]:
    """The stand-in of SDPA; its dropout draws from `random`."""

    def stand_in(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        return _attention(random, *args, **kwargs)

    return {F.scaled_dot_product_attention: stand_in}


def _attention(
    random: RandomOps,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if attn_mask is not None and is_causal:
        raise RuntimeError("scaled_dot_product_attention: attn_mask and is_causal exclude each other")
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.to(query.dtype)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    learned = attn_mask is not None and attn_mask.requires_grad
    if dropout_p == 0.0 and not learned and query.dim() >= 3:
        batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
        query, key, value = (x.expand(*batch, *x.shape[-3:]) for x in (query, key, value))
        return sdpa(query, key, value, attn_mask, is_causal, scale, enable_gqa)[0]
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, dim=-3), value.repeat_interleave(repeats, dim=-3)
    weights = torch.softmax(scores(query, key, attn_mask, is_causal, scale), dim=-1).to(query.dtype)
    if dropout_p > 0.0:
        weights = random.dropout(weights, dropout_p)[0]
    return torch.matmul(weights, value)
