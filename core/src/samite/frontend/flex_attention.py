"""Flex attention, written out as torch defines it, with scores of all pairs.

Its kernels come from a compiler of its own. The blocks of a mask are for kernels that skip them: what counts is the
function that a mask was made of.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

__all__ = ["flex_formulas", "unchecked", "written_out"]

_MODULE = "torch.nn.attention.flex_attention"


def written_out(*args: Any, **kwargs: Any) -> Any:
    """What the higher-order op gives for its arguments."""
    from torch._higher_order_ops.flex_attention import math_attention

    return math_attention(*args, **kwargs)


@contextmanager
def unchecked() -> Iterator[None]:
    """Torch refuses gradients on a CPU, and warns of what is not compiled; neither is so here."""
    flex = sys.modules.get(_MODULE)
    with ExitStack() as stack:
        for name in ("_validate_device", "_warn_once"):
            if flex is not None and hasattr(flex, name):
                stack.enter_context(mock.patch.object(flex, name, _nothing))
        yield


def flex_formulas() -> dict[Any, Callable[..., Tensor]]:
    """The op that gives the gradient of a tensor which a `score_mod` indexes, in others."""
    if _MODULE not in sys.modules:
        return {}
    importlib.import_module("torch._dynamo._trace_wrapped_higher_order_op")  # defines it
    return {torch.ops.flex_lib.zeros_and_scatter.default: _zeros_and_scatter}


def _zeros_and_scatter(shape: Sequence[int], indices: Sequence[Tensor], values: Tensor) -> Tensor:
    zeros = torch.zeros(list(shape), dtype=values.dtype, device=values.device)
    return torch.ops.aten.index_put.default(zeros, list(indices), values, True)


def _nothing(*_: object, **__: object) -> None:
    return None
