"""Decompositions that torch has, of ops whose parts have rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["borrowed"]

NORMALISATIONS = """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training native_batch_norm_backward
    _batch_norm_with_update _batch_norm_no_update batch_norm_backward native_group_norm native_group_norm_backward
    _fused_rms_norm _fused_rms_norm_backward renorm
"""
LOSSES = """
    mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
    binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits soft_margin_loss
    soft_margin_loss_backward multi_margin_loss multilabel_margin_loss_forward
"""
ARITHMETIC = """
    addr block_diag count_nonzero dist isin ldexp linalg_cross nansum norm _safe_softmax aminmax vdot
    native_dropout_backward
"""
SERIES = "linspace logspace"
INDEXING = "_unsafe_masked_index _unsafe_masked_index_put_accumulate max_unpool2d max_unpool3d"
MOVES = """
    diag_embed rot90 channel_shuffle unsafe_split unsafe_split_with_sizes _chunk_cat narrow_copy alias_copy detach_copy
    expand_copy permute_copy transpose_copy t_copy view_copy squeeze_copy unsqueeze_copy unbind_copy unfold_copy
    split_with_sizes_copy
"""


def borrowed() -> dict[Any, Callable[..., Any]]:
    from torch._decomp import get_decompositions

    names = " ".join((NORMALISATIONS, LOSSES, ARITHMETIC, SERIES, INDEXING, MOVES)).split()
    return get_decompositions([getattr(torch.ops.aten, name) for name in names])
