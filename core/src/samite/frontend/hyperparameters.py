"""Hyper-parameters of optimizers: the learning rate is an argument of the program, the others are constants of its key.

During a capture an optimizer's groups are `Group`s: they force the form of the step that traces (`capturable`, one
tensor at a time) and refuse changes, which a compiled step would not repeat.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from samite.errors import CaptureError
from samite.frontend.keys import freeze
from samite.frontend.source import user_line

__all__ = ["NOT_COMPILED", "RATE", "Group", "constants", "rate_dtype", "traceable"]

RATE = "lr"
NOT_COMPILED = frozenset({
    "params", RATE,
    "initial_lr", "max_lr", "min_lr", "swa_lr", "initial_momentum", "max_momentum", "base_momentum",
})  # fmt: skip
"""The learning rate, and what schedulers write down for themselves in a group."""
_FORCED = {"capturable": True, "foreach": False, "fused": False}


def rate_dtype(group: Mapping[str, Any]) -> torch.dtype:
    """The dtype in which the learning rate of `group` enters a program."""
    rate = group[RATE]
    if isinstance(rate, Tensor):
        return rate.dtype
    return torch.float64 if any(p.dtype == torch.float64 for p in group["params"]) else torch.float32


def constants(group: Mapping[str, Any]) -> Hashable:
    """What of `group` is compiled in, for the key."""
    return tuple((k, freeze(v)) for k, v in group.items() if k not in NOT_COMPILED)


def traceable(options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` of an optimizer or a group, with the form of the step that traces."""
    return {**options, **{k: v for k, v in _FORCED.items() if k in options}}


class Group(dict[str, Any]):
    """A parameter group under capture. Setting an entry to another value raises CaptureError with the line."""

    def __init__(self, entries: Mapping[str, Any], name: str) -> None:
        super().__init__(traceable(entries))
        self._name = name

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self and (self[key] is value or freeze(self[key]) == freeze(value)):
            return
        what = "the learning rate" if key == RATE else f'"{key}"'
        raise CaptureError(
            f"{what} of {self._name} is changed inside the step",
            where=user_line(),
            help="change it outside of the captured function (there a learning rate is read at every call)",
        )

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value
