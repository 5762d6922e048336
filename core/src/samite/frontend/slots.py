"""Leaves of the state tree, and the slots of the user's objects that hold them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samite.errors import InputError
from samite.frontend.hyperparameters import RATE, numbers

__all__ = [
    "ArgumentSlot", "EntrySlot", "GradientSlot", "Kind", "Leaf", "NumbersSlot", "RateSlot", "Role", "Slot",
    "TensorSlot", "unwatched",
]  # fmt: skip

Kind = Literal["state", "input", "scalar", "rng"]
Role = Literal["parameter", "buffer", "gradient", "optimizer", "scalar", "input"]


class Slot(Protocol):
    """Where one tensor lives. `get` gives None while it is absent; `set(None)` makes it absent."""

    def get(self) -> Tensor | None: ...
    def set(self, value: Tensor | None) -> None: ...


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """An entry of a dictionary or list, whose tensor others may hold as well: it keeps its identity.

    `module` is the module that owns the dictionary, if one does.
    """

    container: Any
    key: Any
    module: nn.Module | None = None

    def get(self) -> Tensor:
        return self.container[self.key]

    def set(self, value: Tensor | None) -> None:
        current = self.get()
        if value is None:
            raise TypeError("a parameter or buffer cannot be absent")
        if value is current:
            return
        if isinstance(current, nn.Parameter):
            value = nn.Parameter(value, requires_grad=current.requires_grad)
            value.grad = current.grad  # or it would go with the old value
        with unwatched(self.module):
            try:
                torch.utils.swap_tensors(current, value)
            except RuntimeError as error:
                raise InputError(
                    f"a tensor of shape {tuple(current.shape)} cannot be replaced: {error}",
                    help="drop weak references to it, and autograd graphs that hold it: keep loss.detach(), not loss",
                ) from error


@contextmanager
def unwatched(module: nn.Module | None) -> Iterator[None]:
    """Recurrent layers hold weak references to their weights, with which a tensor cannot be swapped."""
    if not isinstance(module, nn.RNNBase):
        yield
        return
    refs: list[Any] = module._flat_weight_refs  # changed in place: others may hold the list
    refs[:] = [None] * len(module._flat_weights)
    try:
        yield
    finally:
        refs[:] = [None if w is None else weakref.ref(w) for w in module._flat_weights]


@dataclass(frozen=True, slots=True)
class ArgumentSlot:
    """A tensor argument. A new value is copied into it, since it may be a view of something larger."""

    value: Tensor

    def get(self) -> Tensor:
        return self.value

    def set(self, value: Tensor | None) -> None:
        if value is None:
            raise TypeError("an argument cannot be absent")
        with torch.no_grad():
            self.value.copy_(value)


@dataclass(frozen=True, slots=True)
class GradientSlot:
    owner: TensorSlot | ArgumentSlot

    def get(self) -> Tensor | None:
        return self.owner.get().grad

    def set(self, value: Tensor | None) -> None:
        self.owner.get().grad = value


@dataclass(frozen=True, slots=True)
class EntrySlot:
    """One entry of an optimizer's state of a parameter."""

    optimizer: Optimizer
    owner: TensorSlot | ArgumentSlot
    key: str

    def get(self) -> Tensor | None:
        # The state is a defaultdict: to look must not create.
        return self.optimizer.state.get(self.owner.get(), {}).get(self.key)

    def set(self, value: Tensor | None) -> None:
        entries = self.optimizer.state[self.owner.get()]
        if value is None:
            entries.pop(self.key, None)
        else:
            entries[self.key] = value


@dataclass(frozen=True, slots=True)
class RateSlot:
    """A group's learning rate, as a 0-d tensor made at every read. The program never sets it."""

    group: dict[str, Any]
    dtype: torch.dtype

    def get(self) -> Tensor:
        rate = self.group[RATE]
        return rate if isinstance(rate, Tensor) else torch.tensor(rate, dtype=self.dtype)

    def set(self, value: Tensor | None) -> None:
        raise TypeError("a learning rate is read by the program and set by the user")


@dataclass(frozen=True, slots=True)
class NumbersSlot:
    """A group's numbers, as a 1-d float64 tensor made at every read. The program never sets it."""

    group: dict[str, Any]
    names: tuple[str, ...]

    def get(self) -> Tensor:
        return torch.tensor(numbers(self.group, self.names), dtype=torch.float64)

    def set(self, value: Tensor | None) -> None:
        raise TypeError("hyper-parameters are read by the program and set by the user")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of the user's. `owner` names the parameter that a gradient or optimizer state belongs to, else ""."""

    name: str
    role: Role
    owner: str
    slot: Slot

    @property
    def kind(self) -> Kind:
        return self.role if self.role == "scalar" or self.role == "input" else "state"

    def get(self) -> Tensor | None:
        """The tensor itself (of numbers in Python: a tensor of them); None while it is absent."""
        return self.slot.get()

    def set(self, value: Tensor) -> None:
        """Make `value` the current one.

        Parameters, buffers and other tensors of modules keep their identity (`torch.utils.swap_tensors`): everyone who
        holds them sees the new value. A tensor argument is copied into. Gradients and optimizer state are replaced.
        """
        self.slot.set(value)

    def delete(self) -> None:
        """Make a gradient or a piece of optimizer state absent. Raises TypeError for anything else."""
        self.slot.set(None)
