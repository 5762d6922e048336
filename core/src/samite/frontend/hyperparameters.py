"""Hyper-parameters of optimizers: each is an argument of the program, or part of its key.

The learning rate of every group is a 0-d argument. What `torch.optim.SGD`, `Adam` and `AdamW` compute with besides
(momentum, betas, eps, ...) enters, together with the rate, as one float64 argument a group, its *numbers*: the update
ops read them there, so that schedulers may change them. Whether momentum and weight decay are zero is a matter of
structure, and part of the key. Everything else in a group is a constant, compiled in and part of the key; so is a
number from the moment that a capture sees other Python read it (`samite.frontend.groups`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from samite.frontend.keys import freeze

__all__ = [
    "BRANCHES", "NOTES", "NUMBERS", "RATE", "Entry", "constants", "loose", "number_names", "numbers", "rate_dtype",
    "structure", "traceable", "values_of",
]  # fmt: skip

Entry = tuple[str, int, str]
"""An entry of a group: the optimizer's name, the number of the group, the entry's key."""

RATE, NUMBERS = "lr", "numbers"
NOTES = frozenset(
    {"initial_lr", "max_lr", "min_lr", "swa_lr", "initial_momentum", "max_momentum", "base_momentum"}
)  # fmt: skip
"""What schedulers write down for themselves in a group."""

_NAMES: Mapping[type[Optimizer], tuple[str, ...]] = {
    SGD: (RATE, "momentum", "dampening", "weight_decay"),
    Adam: (RATE, "betas", "eps", "weight_decay"),
}
"""Entries that are numbers, in the order in which `samite.ir.sgd` and `samite.ir.adam` take them."""
BRANCHES = ("momentum", "weight_decay")
"""What torch.optim compares with zero."""
_FORCED = {"capturable": True, "foreach": False, "fused": False}


def number_names(optimizer: Optimizer, group: Mapping[str, Any]) -> tuple[str, ...]:
    """The entries of `group` that enter a program as its numbers; none if one of them is not what torch expects."""
    names = next((names for kind, names in _NAMES.items() if isinstance(optimizer, kind)), ())
    return names if all(_is_number(group.get(name), name) for name in names) else ()


def _is_number(value: object, name: str) -> bool:
    if name == "betas":
        return isinstance(value, Sequence) and len(value) == 2 and all(_is_number(beta, "") for beta in value)
    if isinstance(value, Tensor):  # a handle would be waited for at every call, and a gradient would be lost
        return type(value) is Tensor and value.numel() == 1 and not value.requires_grad
    return isinstance(value, (float, Real))


def numbers(group: Mapping[str, Any], names: Iterable[str]) -> list[float]:
    """The numbers of `group`: the values of these entries, pairs one after the other."""
    found: list[float] = []
    for name in names:
        value = group[name]
        found.extend(map(float, value) if name == "betas" else (float(value),))
    return found


def structure(optimizer: Optimizer, group: Mapping[str, Any]) -> Hashable:
    """What a program depends on of the entries that it does not hold as constants: names, and what is zero."""
    names = number_names(optimizer, group)
    rate = group.get(RATE)
    kind = rate.dtype if isinstance(rate, Tensor) else RATE in group
    return kind, names, tuple(bool(group[name]) for name in BRANCHES if name in names)


def loose(names: Collection[str]) -> frozenset[str]:
    """The entries of a group with these numbers that are no constants."""
    return frozenset({"params", RATE, *names, *NOTES})


def constants(optimizer: Optimizer, group: Mapping[str, Any]) -> Hashable:
    """What of `group` is compiled in, for the key."""
    outside = loose(number_names(optimizer, group))
    return tuple((k, freeze(v)) for k, v in group.items() if k not in outside)


def values_of(optimizers: Iterable[tuple[str, Optimizer]], entries: Collection[Entry]) -> Hashable:
    """The values of entries that a capture read, for the key."""
    if not entries:
        return ()
    groups = {name: optimizer.param_groups for name, optimizer in optimizers}
    held = [(entry, groups[entry[0]][entry[1] : entry[1] + 1]) for entry in sorted(entries)]
    return tuple((entry, *(freeze(group.get(entry[2])) for group in found)) for entry, found in held)


def rate_dtype(group: Mapping[str, Any]) -> torch.dtype:
    """The dtype in which the learning rate of `group` enters a program."""
    rate = group[RATE]
    if isinstance(rate, Tensor):
        return rate.dtype
    return torch.float64 if any(p.dtype == torch.float64 for p in group["params"]) else torch.float32


def traceable(options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` of an optimizer or a group, with the form of the step that traces."""
    return {**options, **{k: v for k, v in _FORCED.items() if k in options}}
