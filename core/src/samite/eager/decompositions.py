"""Ops that reach the dispatcher outside of a capture only, in terms of those that have rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from samite.eager.fast_paths import fast_paths
from samite.eager.recurrent import recurrent_layers

__all__ = ["more"]

aten = torch.ops.aten


def _empty_like(x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """Memory of no particular content is zeros: then it is the same on every rank."""
    return aten.full.default(list(x.shape), 0, dtype=dtype or x.dtype)


def _new_empty(x: Tensor, size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Tensor:
    return aten.full.default(list(size), 0, dtype=dtype or x.dtype)


@cache
def more() -> dict[Any, Callable[..., Any]]:
    """op -> its decomposition, beside those of captures."""
    return {
        **fast_paths(),
        **recurrent_layers(),
        aten.empty_like.default: _empty_like,
        aten.new_empty.default: _new_empty,
        aten.new_empty_strided.default: _new_empty,
    }
