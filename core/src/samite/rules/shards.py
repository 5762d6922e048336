"""What `local` and `expand` functions may ask about the shards they run on. All of it is torch code that is traced once
and serves every rank: a rank's place is `torch.ops.samite.axis_index`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import torch

from samite.ir.collectives import join_axes
from samite.ir.graph import overload
from samite.layout import Dim, Factor, axes_of
from samite.rules.binding import Bound
from samite.rules.planning import OpPlan

__all__ = ["Shards", "along", "place_of", "valid_mask"]


def place_of(factor: Factor, mesh: Mapping[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(first global index, valid length) of this rank's shard of a factor, both 0-d int64: `Factor.span` in torch."""
    first = torch.zeros((), dtype=torch.int64)
    for axis, chunk in zip(factor.axes, factor.chunks(mesh)[1:], strict=True):
        first = first + torch.ops.samite.axis_index(axis) * chunk
    return first, valid_length(factor, mesh)


def valid_length(factor: Factor, mesh: Mapping[str, int]) -> torch.Tensor:
    """0-d int64: how much of this rank's shard of a factor is no padding."""
    if not factor.axes:
        return torch.full((), factor.size, dtype=torch.int64)
    peers = [mesh[axis] for axis in factor.axes]
    return torch.ops.samite.valid_length(join_axes(factor.axes), factor.size, peers)


def valid_mask(factors: Dim, mesh: Mapping[str, int]) -> torch.Tensor:
    """Bool, one entry a local position of a dim: whether it holds an element rather than padding."""
    first, *rest = (
        torch.arange(f.local(mesh)) < valid_length(f, mesh)
        if f.padded(mesh)
        else torch.ones((f.local(mesh),), dtype=torch.bool)
        for f in factors
    )
    for here in rest:
        first = (first[:, None] & here).reshape(-1)
    return first


def along(vector: torch.Tensor, dim: int, ndim: int) -> torch.Tensor:
    """A 1-d tensor shaped to broadcast along dim `dim` of `ndim`."""
    return vector.view([-1 if i == dim % ndim else 1 for i in range(ndim)])


class Shards:
    """The place of the shards that one call of an op works on. Words are letters of the rule's notation, or runs."""

    def __init__(self, bound: Bound, plan: OpPlan, mesh: Mapping[str, int]) -> None:
        self.bound, self.plan, self.mesh = bound, plan, mesh

    def letters(self, word: str) -> tuple[str, ...]:
        """The letters of a run, or the letter itself."""
        return self.bound.runs.get(word, (word,))

    def factors(self, letter: str) -> Dim:
        return self.plan.given.get(letter, (Factor(self.bound.sizes[letter]),))

    def axes(self, word: str) -> tuple[str, ...]:
        """The axes that split a letter (or any of a run), major first."""
        return tuple(axis for letter in self.letters(word) for axis in axes_of(self.plan.given.get(letter, ())))

    def split(self, word: str) -> bool:
        return bool(self.axes(word))

    def size(self, letter: str) -> int:
        """Global size."""
        return self.bound.sizes[letter]

    def local_size(self, letter: str) -> int:
        """Local size, padding included."""
        return prod(f.local(self.mesh) for f in self.factors(letter))

    def dtype(self, result: int = 0) -> torch.dtype:
        """The dtype of a result."""
        return getattr(torch, self.bound.op.results[result].dtype)

    def result_shape(self, result: int = 0) -> list[int]:
        """Local shape of a result."""
        return list(self.plan.results[result].local_shape(self.mesh))

    # ---- collectives -----------------------------------------------------------------------------

    def all_reduce(self, x: torch.Tensor, word: str, reduce_type: str = "sum") -> torch.Tensor:
        """Reduced over the ranks that hold other parts of a letter (or run)."""
        axes = self.axes(word)
        return torch.ops.samite.all_reduce(x, join_axes(axes), reduce_type) if axes else x

    def all_gather(self, x: torch.Tensor, letter: str, dim: int) -> torch.Tensor:
        """The buffers of a letter's other ranks, joined along `dim`, major axis first."""
        axes = self.axes(letter)
        return torch.ops.samite.all_gather(x, join_axes(axes), dim % x.ndim, self.peers(letter)) if axes else x

    def peers(self, letter: str) -> int:
        """The number of ranks that a letter is split over."""
        return prod(self.mesh[axis] for axis in self.axes(letter))

    def index(self, letter: str) -> torch.Tensor:
        """0-d int64: this rank's number among them, the major axis slowest."""
        number = torch.zeros((), dtype=torch.int64)
        for axis in self.axes(letter):
            number = number * self.mesh[axis] + torch.ops.samite.axis_index(axis)
        return number

    def once(self, x: torch.Tensor, letter: str) -> torch.Tensor:
        """`x` on the first rank of a letter and zeros on the others: a term of an owed sum that each rank has whole."""
        return torch.where(self.index(letter) == 0, x, torch.zeros((), dtype=x.dtype)) if self.split(letter) else x

    # ---- places ----------------------------------------------------------------------------------

    def valid(self, letter: str) -> torch.Tensor | None:
        """Which local positions of a letter hold elements, or None if all of them do."""
        factors = self.factors(letter)
        return valid_mask(factors, self.mesh) if any(f.padded(self.mesh) for f in factors) else None

    def mask(self, x: torch.Tensor, word: str, dims: int | Sequence[int], fill: float) -> torch.Tensor:
        """`x` with `fill` where the dim of a letter, or one of a run's, is padding."""
        for letter, dim in zip(self.letters(word), [dims] if isinstance(dims, int) else dims, strict=True):
            valid = self.valid(letter)
            if valid is not None:
                x = torch.where(along(valid, dim, x.ndim), x, torch.full((), fill, dtype=x.dtype))
        return x

    def positions(self, letter: str) -> torch.Tensor:
        """int64, the global index of every local position of a letter; padding has some index beyond its shard."""
        whole = torch.zeros((1,), dtype=torch.int64)
        for factor in self.factors(letter):
            here = place_of(factor, self.mesh)[0] + torch.arange(factor.local(self.mesh))
            whole = (whole[:, None] * factor.size + here).reshape(-1)
        return whole

    def local_index(self, letter: str, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(local position of each global index, 0 where it is elsewhere; whether it is here). Right for any factors.

        Indices count from 0; whatever is no index of the dim is elsewhere.
        """
        factors = self.factors(letter)
        mine = torch.ones_like(index, dtype=torch.bool)
        position, stride, rest = torch.zeros_like(index), 1, index
        for k, factor in enumerate(reversed(factors)):
            last = k == len(factors) - 1
            digit = rest if last else rest.remainder(factor.size)
            rest = rest if last else rest.div(factor.size, rounding_mode="floor")
            first, valid = place_of(factor, self.mesh)
            mine = mine & (digit >= first) & (digit < first + valid)
            position, stride = position + (digit - first) * stride, stride * factor.local(self.mesh)
        return torch.where(mine, position, torch.zeros_like(position)), mine

    # ---- the call --------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], operands: Sequence[torch.Tensor]) -> Any:
        """`function(self, *operands as the rule has them, **literals)`; an absent operand is None, a list a list."""
        terms = self.bound.notation.operands
        arguments: list[Any] = [[] if term.list else None for term in terms]
        for role, tensor in zip(self.bound.roles, operands, strict=True):
            if terms[role].list:
                arguments[role].append(tensor)
            else:
                arguments[role] = tensor
        return function(self, *arguments, **self._literals)

    @cached_property
    def _literals(self) -> dict[str, Any]:
        op = self.bound.op
        if op.attributes:
            return dict(op.attributes)
        tensors = {a.name for a in overload(op.name)._schema.arguments if "Tensor" in str(a.type)}
        return {name: value for name, value in op.literals.items() if name not in tensors}
