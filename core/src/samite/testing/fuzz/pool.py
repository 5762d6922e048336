"""The values that a program has so far, and drawing from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

__all__ = ["LARGEST", "Pool", "Unfit", "Value"]

LARGEST = 600
"""Elements of the largest value; what an op makes beyond is not kept."""


@dataclass(frozen=True)
class Value:
    """A value by its name in the program.

    `exact`: it is made of whole numbers by ops that do not round, so that any order of adding up gives the same, and an
    op that jumps (a comparison, a sort) does so at the same place everywhere.
    """

    name: str
    tensor: Tensor
    exact: bool

    def __str__(self) -> str:
        return self.name

    @property
    def shape(self) -> list[int]:
        return list(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    def size(self, dim: int) -> int:
        return self.tensor.shape[dim]

    @property
    def floating(self) -> bool:
        return self.tensor.is_floating_point()


class Unfit(Exception):
    """The pool has nothing that the op could take."""


@dataclass
class Pool:
    """`draw` is hypothesis's; what it gives shrinks towards the first value, the first dim, the smallest number."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    values: list[Value] = field(default_factory=list[Value])

    def any(self, fits: Callable[[Value], bool] = lambda value: True) -> Value:
        """A value that fits; Unfit if there is none."""
        found = [value for value in self.values if fits(value)]
        if not found:
            raise Unfit
        return self.draw(st.sampled_from(found))

    def real(self, fits: Callable[[Value], bool] = lambda value: True) -> Value:
        return self.any(lambda value: value.floating and fits(value))

    def exact(self, fits: Callable[[Value], bool] = lambda value: True) -> Value:
        return self.any(lambda value: value.exact and value.floating and fits(value))

    def with_dims(self, least: int = 1) -> Value:
        return self.real(lambda value: value.ndim >= least)

    def beside(self, other: Value, *, exact: bool = False) -> Value:
        """A floating value that broadcasts with another; that itself always does."""

        def broadcasts(value: Value) -> bool:
            if exact and not value.exact:
                return False
            try:
                return torch.broadcast_shapes(value.shape, other.shape).numel() <= LARGEST
            except RuntimeError:
                return False

        return self.real(broadcasts)

    def dim(self, value: Value) -> int:
        """A dim of a value, counted from either end."""
        dim = self.number(0, value.ndim - 1)
        return dim - value.ndim if self.flip() else dim

    def dims(self, value: Value) -> list[int]:
        """Some dims of a value, at least one, in any order."""
        dims = st.lists(st.integers(0, value.ndim - 1), min_size=1, max_size=value.ndim, unique=True)
        return self.draw(dims)

    def number(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def flip(self) -> bool:
        return self.draw(st.booleans())

    def one_of(self, *words: Any) -> Any:
        return self.draw(st.sampled_from(words))
