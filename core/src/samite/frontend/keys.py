"""What programs are keyed by, as hashable values."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from typing import Any

import torch

__all__ = ["Identity", "ambient", "freeze"]

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})


class Identity:
    """A value that is only equal to itself; holding it keeps its id from being used again."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__} at {id(self.value):#x}>"


def freeze(value: Any) -> Hashable:
    """A hashable picture of a non-tensor value: constants and containers by content and type, the rest by identity."""
    kind = type(value)
    if kind in _PLAIN:
        return value if kind is str else (kind, value)
    if isinstance(value, Mapping):
        return (kind, tuple((freeze(k), freeze(v)) for k, v in value.items()))
    if isinstance(value, Set):
        return (kind, frozenset(freeze(v) for v in value))
    if isinstance(value, Sequence):
        return (kind, tuple(freeze(v) for v in value))
    return Identity(value)


def ambient() -> Hashable:
    """The modes that the caller is in and that change what a function computes."""
    autocast = tuple(
        (device, torch.get_autocast_dtype(device)) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)
    )
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), autocast
