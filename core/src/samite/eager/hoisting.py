"""Ops whose numbers are arguments of a program: optimizers call them with others at every step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from samite.eager.calls import Facts, facts

__all__ = ["Hoisted", "hoisted", "numbers"]


def _sum(x: Tensor, other: Any, *, alpha: Any = 1, sign: int = 1) -> Tensor:
    return x + other * alpha if sign > 0 else x - other * alpha


_FORMS: dict[str, Callable[..., Tensor]] = {
    "add": _sum,
    "sub": lambda x, other, alpha=1: _sum(x, other, alpha=alpha, sign=-1),
    "mul": lambda x, other: x * other,
    "div": lambda x, other: x / other,
    "addcmul": lambda x, a, b, value=1: x + a * b * value,
    "addcdiv": lambda x, a, b, value=1: x + a / b * value,
    "lerp": lambda x, end, weight: torch.lerp(x, end, weight),
}


class Hoisted:
    """An op over floating tensors of which the numbers are 0-d tensors of the same dtype."""

    def __init__(self, func: Any) -> None:
        self.func = func
        name: str = func._schema.name.removeprefix("aten::")
        self.form, self.facts = _FORMS[name.removesuffix("_")], Facts(facts(func).names, facts(func).written, False)

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made = self.form(x, *args, **kwargs)
        return x.copy_(made) if self.facts.written else made

    def __str__(self) -> str:
        return str(self.func)


@cache
def hoisted(func: Any) -> Hoisted | None:
    """The form of an op that takes its numbers as tensors, None if it has none."""
    schema = getattr(func, "_schema", None)
    if schema is None or func._overloadname not in ("Tensor", "Scalar", "default"):
        return None
    return Hoisted(func) if schema.name.removeprefix("aten::").removesuffix("_") in _FORMS else None


def numbers(
    kind: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments with their floats as 0-d tensors; None if there are none, or a tensor is not float32 or float64."""
    values = [*args, *kwargs.values()]
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        return None
    if not any(isinstance(value, float) for value in values) or type(args[0]) is not kind:
        return None
    (dtype,) = dtypes

    def tensor(value: Any) -> Any:
        return torch.tensor(value, dtype=dtype) if isinstance(value, float) else value

    return tuple(map(tensor, args)), {key: tensor(value) for key, value in kwargs.items()}
