"""How the first trace takes ops apart, so that what reaches the rules is sums, counts and elementwise ops.

A mean is a sum and a global literal count: then a split over the batch leaves a partial sum, exact under
`ignore_index` and class weights, whatever each shard holds. Batch statistics become sums, so that splitting the batch
synchronises them. Constants of the shape of another tensor become `full`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from samite.frontend.bit_shifts import bit_shifts
from samite.frontend.borrowed import borrowed
from samite.frontend.embedding_bag import embedding_bag_formulas
from samite.frontend.flex_attention import flex_formulas
from samite.frontend.index_formulas import index_formulas
from samite.frontend.loss_formulas import loss_formulas
from samite.frontend.weight_norm import weight_norm_formulas

__all__ = ["table"]

aten = torch.ops.aten
_MEAN = 1  # at::Reduction


def _axes(x: Tensor, dim: Sequence[int] | int | None) -> list[int]:
    if dim is None or dim == []:
        return list(range(x.dim()))
    return [d % max(x.dim(), 1) for d in ([dim] if isinstance(dim, int) else dim)]


def _count(x: Tensor, axes: Sequence[int]) -> int:
    return math.prod(x.shape[a] for a in axes) if x.dim() else 1


def _mean(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return aten.sum.default(x, dtype=dtype) / x.numel()


def _mean_dim(
    x: Tensor, dim: Sequence[int] | int | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    axes = _axes(x, dim)
    return aten.sum.dim_IntList(x, axes, keepdim, dtype=dtype) / _count(x, axes)


def _var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    axes, wide = _axes(x, dim), x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    count, correction = _count(x, axes), 1.0 if correction is None else correction
    mean = aten.sum.dim_IntList(wide, axes, True) / count
    centred = wide - mean
    var = aten.sum.dim_IntList(centred * centred, axes, keepdim) / max(count - correction, 0.0)
    shape = var.shape
    return var.to(x.dtype), (mean if keepdim else mean.view(shape)).to(x.dtype)


def _var(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _std(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return _var(x, dim, correction=correction, keepdim=keepdim).sqrt()


def _std_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    var, mean = _var_mean(x, dim, correction=correction, keepdim=keepdim)
    return var.sqrt(), mean


def _vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Sequence[int] | int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    axes, x = _axes(x, dim), (x if dtype is None else x.to(dtype))
    if ord == 2:
        return aten.sum.dim_IntList(x * x, axes, keepdim).sqrt()
    if ord == 1:
        return aten.sum.dim_IntList(x.abs(), axes, keepdim)
    if ord == float("inf"):
        return aten.amax.default(x.abs(), axes, keepdim)
    if ord == 0 or math.isinf(ord):
        return NotImplemented
    return aten.sum.dim_IntList(x.abs() ** ord, axes, keepdim) ** (1.0 / ord)


def _target_mask(scores: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> tuple[Tensor, Tensor]:
    """The target with ignored entries sent to class 0, and each entry's weight (0 where ignored), class dim kept."""
    target = target.unsqueeze(_class_dim(scores))
    kept = target != ignore_index
    safe = torch.where(kept, target, aten.full.default([], 0, dtype=target.dtype, device=target.device))
    if weight is None:
        return safe, kept.to(scores.dtype)
    weights = aten.gather.default(weight, 0, safe.reshape(-1)).view(safe.shape)
    return safe, torch.where(kept, weights, _zero(weights))


def _zero(like: Tensor) -> Tensor:
    return aten.full.default([], 0.0, dtype=like.dtype, device=like.device)


def _class_dim(scores: Tensor) -> int:
    return 0 if scores.dim() == 1 else 1


def _nll_loss(
    scores: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    safe, weights = _target_mask(scores, target, weight, ignore_index)
    losses = aten.gather.default(scores, _class_dim(scores), safe) * -weights
    if reduction == 0:
        return losses.squeeze(_class_dim(scores)), _zero(scores)
    total = aten.sum.default(weights)
    loss = aten.sum.default(losses)
    return (loss / total if reduction == _MEAN else loss), total


def _nll_loss_backward(
    grad: Tensor,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    safe, weights = _target_mask(scores, target, weight, ignore_index)
    if reduction == _MEAN:
        grad = grad / total_weight
    grad = grad.unsqueeze(_class_dim(scores)) if reduction == 0 else grad
    shape = [1] * scores.dim()
    shape[_class_dim(scores)] = scores.shape[_class_dim(scores)]
    classes = torch.arange(scores.shape[_class_dim(scores)], device=scores.device).view(shape)
    return torch.where(classes == safe, -grad * weights, _zero(scores))


def _zeros_like(x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return aten.full.default(x.shape, 0, dtype=dtype or x.dtype, device=x.device)


def _ones_like(x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return aten.full.default(x.shape, 1, dtype=dtype or x.dtype, device=x.device)


def _full_like(x: Tensor, value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return aten.full.default(x.shape, value, dtype=dtype or x.dtype, device=x.device)


def _new_full(x: Tensor, size: Sequence[int], value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return aten.full.default(size, value, dtype=dtype or x.dtype, device=x.device)


def _new_zeros(x: Tensor, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return aten.full.default(size, 0, dtype=dtype or x.dtype, device=x.device)


def _new_ones(x: Tensor, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return aten.full.default(size, 1, dtype=dtype or x.dtype, device=x.device)


def _zeros(size: Sequence[int], *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    return aten.full.default(size, 0, dtype=dtype or torch.get_default_dtype(), device=device)


# What is empty holds zeros: any number is as good, but it must be the same on every rank.


def _strided_zeros(size: Sequence[int], order: Sequence[int], **options: Any) -> Tensor:
    return _zeros(size, **options)


def _new_strided_zeros(x: Tensor, size: Sequence[int], stride: Sequence[int], **options: Any) -> Tensor:
    return _new_zeros(x, size, **options)


def _ones(size: Sequence[int], *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    return aten.full.default(size, 1, dtype=dtype or torch.get_default_dtype(), device=device)


def _squeeze_dims(x: Tensor, dims: Sequence[int]) -> Tensor:
    drop = {d % x.dim() for d in dims if x.shape[d] == 1} if x.dim() else set[int]()
    return aten.view.default(x, [s for d, s in enumerate(x.shape) if d not in drop])


def _trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    expand_x: Sequence[int],
    expand_y: Sequence[int],
    expand_z: Sequence[int],
    summed: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """A sum over products of three tensors, each of which lacks the dims that it is expanded by."""
    letters = "abcdefghijklmnop"[: x.dim() + len(expand_x)]
    terms = ["".join(c for i, c in enumerate(letters) if i not in gone) for gone in (expand_x, expand_y, expand_z)]
    result = "".join(c for i, c in enumerate(letters) if i not in summed)
    return torch.einsum(f"{','.join(terms)}->{result}", x, y, z)


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """A 0-d tensor has one element; the torch dialect asks for a dim."""
    if x.dim():
        return NotImplemented
    return x.clone(), aten.full.default([], 0, dtype=torch.int64, device=x.device)


def _cholesky(x: Tensor, upper: bool = False) -> Tensor:
    return aten.linalg_cholesky_ex.default(x, upper=upper)[0]


def _trusting(info: Tensor, api_name: str, *, is_matrix: bool) -> None:
    """A program cannot stop at a value: what a factorisation fails on gives what its `_ex` form gives."""


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """op -> its decomposition, for the first trace."""
    return {
        **borrowed(),
        **bit_shifts(),
        **embedding_bag_formulas(),
        **flex_formulas(),
        **index_formulas(),
        **loss_formulas(),
        **weight_norm_formulas(),
        aten.mean.default: _mean,
        aten.mean.dim: _mean_dim,
        aten.var_mean.correction: _var_mean,
        aten.var.correction: _var,
        aten.std.correction: _std,
        aten.linalg_vector_norm.default: _vector_norm,
        aten.nll_loss_forward.default: _nll_loss,
        aten.nll_loss_backward.default: _nll_loss_backward,
        aten.nll_loss2d_forward.default: _nll_loss,
        aten.nll_loss2d_backward.default: _nll_loss_backward,
        aten.zeros_like.default: _zeros_like,
        aten.ones_like.default: _ones_like,
        aten.full_like.default: _full_like,
        aten.new_full.default: _new_full,
        aten.new_zeros.default: _new_zeros,
        aten.new_ones.default: _new_ones,
        aten.zeros.default: _zeros,
        aten.empty.memory_format: _zeros,
        aten.empty_strided.default: _strided_zeros,
        aten.empty_permuted.default: _strided_zeros,
        aten._efficientzerotensor.default: _zeros,
        aten.empty_like.default: _zeros_like,
        aten.new_empty.default: _new_zeros,
        aten.new_empty_strided.default: _new_strided_zeros,
        aten.std_mean.correction: _std_mean,
        aten._trilinear.default: _trilinear,
        aten.kthvalue.default: _kthvalue,
        aten.cholesky.default: _cholesky,
        aten._linalg_check_errors.default: _trusting,
        aten._conj.default: aten._conj_physical.default,
        aten.ones.default: _ones,
        aten.squeeze.dims: _squeeze_dims,
        aten._is_any_true.default: aten.any.default,
        aten._is_all_true.default: aten.all.default,
    }
