"""What torch's modules call in place of their own forward when nobody wants a gradient, taken apart again.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` have one op each for that. A mask is of booleans, True where
nothing is attended to; its type says what it has: 0 (query, key), 1 (batch, key), 2 all four dims of the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["fast_paths"]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Of (batch, time, embed) tensors; the weights are averaged over the heads, or of each."""
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (F.linear(x, w, b).unflatten(2, (num_head, -1)).transpose(1, 2) for x, w, b in parts)
    scores = q @ k.transpose(2, 3) / sqrt(embed_dim // num_head)
    if mask is not None:
        scores = scores.masked_fill(_of_scores(mask.to(torch.bool), mask_type), float("-inf"))
    weights = scores.softmax(-1)
    out = F.linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def _of_scores(mask: Tensor, mask_type: int | None) -> Tensor:
    return mask[:, None, None, :] if mask_type == 1 else mask


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    def attend(x: Tensor) -> Tensor:
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return _attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0]

    def feed_forward(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    first, second = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)
    if norm_first:
        x = src + attend(norm(src, *first))
        return x + feed_forward(norm(x, *second))
    x = norm(src + attend(src), *first)
    return norm(x + feed_forward(x), *second)


def fast_paths() -> dict[Any, Callable[..., Any]]:
    """op -> its decomposition."""
    return {
        torch.ops.aten._native_multi_head_attention.default: _attention,
        torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    }
