"""Scaled dot product attention as one device-neutral op, `samite::sdpa`, and its backward, `samite::sdpa_backward`.

    sdpa(q, k, v, attn_mask?, is_causal, scale, enable_gqa) -> (out, logsumexp)
    sdpa_backward(grad_out, q, k, v, attn_mask?, out, logsumexp, is_causal, scale, enable_gqa) -> (dq, dk, dv)

Shapes: q (*b, h, s, e), k (*b, g, t, e), v (*b, g, t, f) -> out (*b, h, s, f), logsumexp (*b, h, s). h = g, or with
`enable_gqa` h = g·r, and head i reads key head i // r. `attn_mask` broadcasts to (*b, h, s, t); a boolean one is true
where it lets a key through, any other is added to the scores; it gets no gradient. `is_causal` keeps keys j <= i
(aligned at the top left when s != t) and may be combined with a mask. A query whose keys are all masked gives 0, with
logsumexp 0.

`logsumexp` is float32 (float64 for float64). Every result is contiguous, on real and on fake tensors alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["sdpa", "sdpa_backward", "sdpa_reference"]

_FLASH_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

_lib = torch.library.Library("samite", "FRAGMENT")
_lib.define(
    "sdpa(Tensor q, Tensor k, Tensor v, Tensor? attn_mask, bool is_causal, float scale, bool enable_gqa)"
    " -> (Tensor, Tensor)"
)
_lib.define(
    "sdpa_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor? attn_mask, Tensor out, Tensor logsumexp,"
    " bool is_causal, float scale, bool enable_gqa) -> (Tensor, Tensor, Tensor)"
)


def scores(q: Tensor, k: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """The masked scores (*b, h, s, t) before the softmax, computed in `accumulation(q.dtype)`; k has h heads."""
    dtype = accumulation(q.dtype)
    s = torch.matmul(q.to(dtype), k.to(dtype).transpose(-2, -1)) * scale
    if is_causal:
        ones = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device)
        s = s.masked_fill(ones.tril().logical_not(), float("-inf"))
    if attn_mask is None:
        return s
    if attn_mask.dtype == torch.bool:
        return s.masked_fill(attn_mask.logical_not(), float("-inf"))
    return s + attn_mask


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which scores are summed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def sdpa_reference(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float, enable_gqa: bool
) -> tuple[Tensor, Tensor]:
    """`samite::sdpa` in plain torch ops: the definition, and what runs where no fused kernel does."""
    k, v = _repeat(k, q, enable_gqa), _repeat(v, q, enable_gqa)
    s = scores(q, k, attn_mask, is_causal, scale)
    logsumexp = torch.logsumexp(s, dim=-1)
    logsumexp = logsumexp.masked_fill(logsumexp == float("-inf"), 0.0)
    weights = torch.exp(s - logsumexp.unsqueeze(-1))
    return torch.matmul(weights, v.to(weights.dtype)).to(q.dtype).contiguous(), logsumexp.contiguous()


def _reference_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = _repeat(k, q, enable_gqa), _repeat(v, q, enable_gqa)
    s = scores(q, keys, attn_mask, is_causal, scale)
    grad, dtype = grad_out.to(s.dtype), s.dtype
    weights = torch.exp(s - logsumexp.unsqueeze(-1))
    dv = torch.matmul(weights.transpose(-2, -1), grad)
    d_weights = torch.matmul(grad, values.to(dtype).transpose(-2, -1))
    ds = weights * (d_weights - (grad * out.to(dtype)).sum(-1, keepdim=True)) * scale
    dq = torch.matmul(ds, keys.to(dtype))
    dk = torch.matmul(ds.transpose(-2, -1), q.to(dtype))
    dk, dv = _sum_groups(dk, k, enable_gqa), _sum_groups(dv, v, enable_gqa)
    return dq.to(q.dtype).contiguous(), dk.to(k.dtype).contiguous(), dv.to(v.dtype).contiguous()


def _repeat(x: Tensor, q: Tensor, enable_gqa: bool) -> Tensor:
    return x.repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3) if enable_gqa else x


def _sum_groups(grad: Tensor, like: Tensor, enable_gqa: bool) -> Tensor:
    if not enable_gqa:
        return grad
    groups = like.shape[-3]
    return grad.unflatten(-3, (groups, grad.shape[-3] // groups)).sum(-3)


def _flash_mask(attn_mask: Tensor | None, q: Tensor) -> Tensor | None:
    if attn_mask is None or attn_mask.dtype != torch.bool:
        return attn_mask
    return torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill(attn_mask.logical_not(), float("-inf"))


def _has_flash(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None) -> bool:
    """Whether ATen's fused CPU kernel computes this case."""
    return (
        q.device.type == "cpu"
        and q.dim() == k.dim() == v.dim() == 4
        and q.dtype in _FLASH_DTYPES
        and q.shape[-1] == k.shape[-1] == v.shape[-1]
        and min(q.numel(), k.numel()) > 0
        and (attn_mask is None or (attn_mask.dim() in (2, 4) and attn_mask.dtype in (torch.bool, q.dtype)))
    )


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float, enable_gqa: bool
) -> tuple[Tensor, Tensor]:
    if not _has_flash(q, k, v, attn_mask):
        return sdpa_reference(q, k, v, attn_mask, is_causal, scale, enable_gqa)
    out, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, is_causal, attn_mask=_flash_mask(attn_mask, q), scale=scale
    )
    return out.contiguous(), logsumexp.contiguous()


def _sdpa_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if not _has_flash(q, k, v, attn_mask):
        return _reference_backward(grad_out, q, k, v, attn_mask, out, logsumexp, is_causal, scale, enable_gqa)
    mask = _flash_mask(attn_mask, q)
    grads: Sequence[Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, q, k, v, out, logsumexp, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    dq, dk, dv = (g.contiguous() for g in grads)
    return dq, dk, dv


_lib.impl("sdpa", _sdpa, "CompositeExplicitAutograd")
_lib.impl("sdpa_backward", _sdpa_backward, "CompositeExplicitAutograd")

sdpa = torch.ops.samite.sdpa.default
sdpa_backward = torch.ops.samite.sdpa_backward.default


@torch.library.register_fake("samite::sdpa")
def _(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float, enable_gqa: bool
) -> tuple[Tensor, Tensor]:
    heads, keys, depth = q.shape[-3], k.shape[-3], q.shape[-1]
    torch._check(k.shape[-1] == depth, lambda: f"sdpa: q has head dim {depth}, k has {k.shape[-1]}")
    torch._check(k.shape[:-1] == v.shape[:-1], lambda: f"sdpa: k {tuple(k.shape)} and v {tuple(v.shape)} do not match")
    torch._check(
        heads % keys == 0 if enable_gqa else heads == keys,
        lambda: f"sdpa: {heads} query heads over {keys} key heads" + ("" if enable_gqa else " need enable_gqa"),
    )
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, q.new_empty(q.shape[:-1], dtype=accumulation(q.dtype))


@torch.library.register_fake("samite::sdpa_backward")
def _(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, attn_mask, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, attn_mask, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(True)


def _differentiate(ctx: Any, grad_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, attn_mask, out, logsumexp = ctx.saved_tensors
    dq, dk, dv = sdpa_backward(grad_out, q, k, v, attn_mask, out, logsumexp, *ctx.options)
    return dq, dk, dv, None, None, None, None


torch.library.register_autograd("samite::sdpa", _differentiate, setup_context=_save)
