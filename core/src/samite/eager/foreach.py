"""Ops on lists of tensors (`torch._foreach_add_`, ...), which optimizers call for all parameters at once."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import torch

from samite.eager.calls import Facts, facts, leaves_of
from samite.eager.emission import Plan
from samite.eager.reads import writes_plain
from samite.eager.spec import Spec
from samite.eager.value import enclosing

__all__ = ["is_foreach", "plan"]

_PREFIX = "aten::_foreach_"


class Planner(Protocol):
    def plan(self, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan: ...


@cache
def is_foreach(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is not None and schema.name.startswith(_PREFIX)


def plan(home: Planner, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
    """All tensors at once on this rank's shards, where the op of each runs on shards as it is called; else one by
    one, as where some are plain."""
    calls = one_by_one(func, args, kwargs)
    if not any(_is_of_plain(kind, *call) for call in calls):
        each: list[Any] = [home.plan(kind, *call) for call in calls]
        if all(made.direct for made in each):
            return _together(kind, func, [made.specs[0] for made in each])

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        made = [_called(kind, *call) for call in one_by_one(func, args, kwargs)]
        return made if func._schema.returns else None

    return run


def _is_of_plain(kind: type[Any], op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call has no distributed tensor, or writes into a plain one."""
    tensors = [x for _, x in leaves_of(args, kwargs)]
    return not any(type(x) is kind for x in tensors) or writes_plain(kind, op, args, kwargs)


def _called(kind: type[Any], op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if any(type(x) is kind for _, x in leaves_of(args, kwargs)):
        return kind.__torch_dispatch__(op, (), args, kwargs)
    return op(*args, **kwargs)


def one_by_one(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """The op, arguments and keyword arguments for each tensor of the lists."""
    count = len(args[0])
    name: str = func._schema.name.removeprefix(_PREFIX)
    if name.startswith("addc") and len(args) == 4:
        args, kwargs = args[:3], {**kwargs, "value": args[3]}
    return [
        _single(name, tuple(_at(a, i) for a in args), {k: _at(v, i) for k, v in kwargs.items()}) for i in range(count)
    ]


def _at(value: Any, i: int) -> Any:
    return value[i] if isinstance(value, (list, tuple)) else value


def _single(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    stem, place = name.removesuffix("_"), "_" if name.endswith("_") else ""
    number = len(args) > 1 and not isinstance(args[-1], torch.Tensor)
    if number and stem in _BOUNDS:
        stem = _BOUNDS[stem]
    if stem == "norm":
        args, stem = args[:2], "linalg_vector_norm"
    if isinstance(kwargs.get("value"), torch.Tensor):
        kwargs = {"value": kwargs["value"].item()}
    aten: Any = torch.ops.aten
    if place and not hasattr(aten, stem + place):
        return _in_place(getattr(getattr(aten, stem), _overload(stem, "", number))), args, kwargs
    return getattr(getattr(aten, stem + place), _overload(stem, place, number)), args, kwargs


class _InPlace:
    """An op that has no form of its own that writes its result to its first argument."""

    def __init__(self, func: Any) -> None:
        self.func = func
        names = facts(func).names
        self.facts = Facts(names, frozenset(names[:1]), False)

    def __call__(self, x: torch.Tensor, *args: Any) -> torch.Tensor:
        return x.copy_(self.func(x, *args))

    def __str__(self) -> str:
        return f"{self.func} in place"


_in_place = cache(_InPlace)


_BOUNDS = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""What a list of tensors and a number is for one tensor."""


def _overload(stem: str, place: str, number: bool) -> str:
    match stem:
        case "add" | "sub" | "mul" | "div":
            return "Tensor"
        case "lerp":
            return "Scalar" if number else "Tensor"
        case "pow" if place:
            return "Scalar" if number else "Tensor"
        case "pow":
            return "Tensor_Scalar" if number else "Tensor_Tensor"
        case "clamp_min" | "clamp_max" if not number:
            return "Tensor"
        case _:
            return "default"


def _together(kind: type[Any], func: Any, specs: list[Spec | None]) -> Plan:
    """The called op on lists of shards; `specs` are its results', None where it writes."""
    op = func._op

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        made = op(*[_local(value, kind) for value in args], **{k: _local(v, kind) for k, v in kwargs.items()})
        if made is None:
            return None
        results: list[Any] = []
        for local, spec in zip(made, specs, strict=True):
            assert spec is not None, "an op that gives new tensors has specs of them"
            results.append(enclosing(local, spec, kind))
        return results

    return run


def _local(value: Any, kind: type[Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return [x._local if type(x) is kind else x for x in value]
    return value._local if type(value) is kind else value
