"""torch's functions over lists of tensors (`torch._foreach_add_`, ...), one tensor at a time.

They are a way of launching fewer kernels, which is a backend's business: what a graph says is one op a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from samite.frontend.random_arguments import Handler

__all__ = ["handlers"]

_PREFIX = "_foreach_"


def handlers() -> dict[Any, Handler]:
    return {getattr(torch, name): _one_by_one for name in dir(torch) if name.startswith(_PREFIX)}


def _one_by_one(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    name = func.__name__.removeprefix(_PREFIX)
    if name.startswith(("addcdiv", "addcmul")) and len(args) == 4:
        *args_before, value = args
        args, kwargs = tuple(args_before), {**kwargs, "value": value}
    elif name.startswith(("addcdiv", "addcmul")) and "scalars" in kwargs:
        kwargs = {"value": kwargs["scalars"]}
    op = torch.linalg.vector_norm if name == "norm" else getattr(torch, name, None) or getattr(Tensor, name)
    count = next(len(a) for a in args if _is_list(a))

    def at(value: Any, i: int) -> Any:
        return value[i] if _is_list(value) else value

    return [op(*(at(a, i) for a in args), **{k: at(v, i) for k, v in kwargs.items()}) for i in range(count)]


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))
