"""What programs are keyed by, as hashable values."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

__all__ = [
    "CACHES", "HOOKS", "MODULE", "STEP_HOOKS", "Identity", "Key", "ambient", "freeze",
    "has_attributes", "is_constant", "own_attributes", "recomputed",
]  # fmt: skip

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})


MODULE = frozenset(vars(nn.Module()))
"""Attributes of every module."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes of every module that hold functions of the user's."""
CACHES = frozenset({"_flat_weights", "_flat_weight_refs"})
"""Attributes in which recurrent layers list their weights, and list them anew whenever these are other objects."""
STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
"""Attributes of every optimizer that hold functions of the user's which a step calls."""
_OPTIMIZER = frozenset(
    ("param_groups", "state", "_opt_called", "_step_count", "_warned_capturable_if_run_uncaptured")
    + tuple(f"_optimizer_{verb}_{when}_hooks" for verb in ("state_dict", "load_state_dict") for when in ("pre", "post"))
)
"""Attributes of every optimizer that no step depends on, and those that a state tree has."""


class Key:
    """A hashable value whose hash is computed once: those of programs are deep, and looked up at every call."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, *parts: Hashable) -> None:
        self._parts, self._hash = parts, hash(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self._hash == other._hash and self._parts == other._parts

    def __hash__(self) -> int:
        return self._hash


class Identity:
    """A value that is only equal to itself. It is not kept alive if it can be helped; once gone it equals nothing."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: object) -> None:
        self._hash = id(value)
        try:
            self._value: Callable[[], object] = weakref.ref(value)
        except TypeError:
            self._value = lambda: value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and (value := self._value()) is not None and value is other._value()

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<{type(self._value()).__name__} at {self._hash:#x}>"


def is_constant(value: object) -> bool:
    """Whether `value` is a number, a string or the like, which is equal to others of the same content."""
    return type(value) in _PLAIN


def freeze(value: Any) -> Hashable:
    """A hashable picture of a non-tensor value: constants and containers by content and type, the rest by identity."""
    kind = type(value)
    if kind in _PLAIN:
        return value if kind is str else (kind, value)
    if isinstance(value, Tensor):
        return kind, value.shape, value.dtype  # not by identity: with weak references to it, it could not be swapped
    if isinstance(value, Mapping):
        return (kind, tuple((freeze(k), freeze(v)) for k, v in value.items()))
    if isinstance(value, Set):
        return (kind, frozenset(freeze(v) for v in value))
    if isinstance(value, Sequence):
        return (kind, tuple(freeze(v) for v in value))
    return Identity(value)


def recomputed(module: nn.Module) -> frozenset[str]:
    """Attributes that torch's hooks compute of parameters before each forward: weight_norm, spectral_norm, pruning."""
    hooks = [h for h in module._forward_pre_hooks.values() if type(h).__module__.startswith("torch.nn.utils.")]
    names = (getattr(hook, "name", None) or getattr(hook, "_tensor_name", None) for hook in hooks)
    return frozenset(name for name in names if isinstance(name, str))


_OPAQUE = (LRScheduler, torch.Generator, nn.Module, Optimizer, Tensor, ModuleType, type)


def has_attributes(value: object) -> bool:
    """Whether `value` is an object of a class of the user's, whose attributes a function may read as its arguments."""
    return hasattr(value, "__dict__") and not isinstance(value, _OPAQUE) and not inspect.isroutine(value)


def own_attributes(optimizer: Optimizer) -> dict[str, Any]:
    """What a step may read of an optimizer besides groups and state: its class's attributes, defaults and hooks."""
    held = vars(optimizer).items()
    return {k: v for k, v in held if k not in _OPTIMIZER and not hasattr(v, "_wrapped_by_lr_sched")}


def ambient() -> Hashable:
    """The modes that the caller is in and that change what a function computes."""
    autocast = tuple(
        (device, torch.get_autocast_dtype(device)) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)
    )
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), autocast
