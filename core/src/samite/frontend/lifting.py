"""Seeing what a function takes, gives and captures: tensors that it reaches past its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["Inputs", "Lifting", "Results"]


class Lifting(TorchFunctionMode):
    """Sees every tensor that torch's functions are given. One that was neither an input nor made since is captured:
    noted, or, with `places`, replaced by what it is there."""

    def __init__(self, inputs: Sequence[Tensor], places: dict[int, Tensor] | None = None) -> None:
        super().__init__()
        self.captured: list[Tensor] = []
        self._places = places
        self._known = {id(x): x for x in inputs}  # which keeps them alive, and their ids theirs
        self._versions = [(x, x._version) for x in inputs]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, self._replaced, (args, kwargs or {}))
        result = func(*args, **kwargs)
        self._known.update((id(x), x) for x in pytree.tree_leaves(result) if isinstance(x, Tensor))
        return result

    def has_written(self) -> bool:
        """Whether an input or something captured has changed since."""
        return any(x._version != version for x, version in self._versions)

    def replaced(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [self._replaced(x) for x in tensors]

    def _replaced(self, x: Tensor) -> Tensor:
        if id(x) in self._known:
            return x
        if self._places is not None:
            return self._places.get(id(x), x)
        self._known[id(x)] = x
        self._versions.append((x, x._version))
        self.captured.append(x)
        return x


@dataclass
class Inputs:
    """What is handed to a function: a tree of tensors and constants. A number that a loop carries is a tensor."""

    tensors: list[Tensor]
    leaves: list[Any]
    spec: pytree.TreeSpec

    @staticmethod
    def of(tree: Any) -> Inputs:
        leaves, spec = pytree.tree_flatten(tuple(tree))
        leaves = [torch.full((), x) if isinstance(x, (bool, int, float)) else x for x in leaves]
        return Inputs([x for x in leaves if isinstance(x, Tensor)], leaves, spec)

    def call(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> Callable[[], Any]:
        given = iter(tensors)
        leaves = [next(given) if isinstance(x, Tensor) else x for x in self.leaves]
        return lambda: function(*pytree.tree_unflatten(leaves, self.spec))


@dataclass
class Results:
    """What a function returned: a tree of tensors and constants."""

    tensors: list[Tensor]
    leaves: list[Any]
    spec: pytree.TreeSpec

    @staticmethod
    def of(tree: Any) -> Results:
        leaves, spec = pytree.tree_flatten(tree)
        return Results([x for x in leaves if isinstance(x, Tensor)], leaves, spec)

    def rebuild(self, made: Any) -> Any:
        given = iter(pytree.tree_leaves(made))
        return pytree.tree_unflatten([next(given) if isinstance(x, Tensor) else x for x in self.leaves], self.spec)
