"""The quickest way to call an op on plain tensors.

An `OpOverload` takes arguments through a generic path that costs about as much as a small kernel; torch's own functions
(`torch.add`) are compiled for theirs. One is used where it is known to end in the same overload.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

__all__ = ["kernel"]


@cache
def kernel(op: Any) -> Callable[..., Any]:
    """A function with the arguments of an overload that does what the overload does."""
    if not isinstance(op, torch._ops.OpOverload):
        return op
    name: str = op._schema.name.removeprefix("aten::")
    if str(op) in _FUNCTIONS:
        functions: Any = torch._C
        return getattr(functions._VariableFunctions, name)
    if str(op) in _METHODS:
        return getattr(torch._C.TensorBase, name)
    return op._op


_FUNCTIONS = frozenset(
    f"aten.{name}"
    for name in (
        *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "pow.Tensor_Scalar", "mm.default", "bmm.default"),
        *("addmm.default", "relu.default", "exp.default", "tanh.default", "sigmoid.default", "sqrt.default"),
        *("rsqrt.default", "neg.default", "abs.default"),
    )
)
_METHODS = frozenset(
    f"aten.{name}"
    for name in (
        *("add_.Tensor", "sub_.Tensor", "mul_.Tensor", "div_.Tensor", "addcmul_.default", "addcdiv_.default"),
        *("view.default", "reshape.default", "t.default", "transpose.int"),
    )
)
