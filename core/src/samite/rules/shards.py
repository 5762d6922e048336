"""What `local` and `expand` functions may ask about the shards they run on. All of it is torch code that is traced once
and serves every rank: a rank's place is `torch.ops.samite.axis_index`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from samite.ir.collectives import join_axes
from samite.layout import Factor, axes_of
from samite.layout.factor import Dim
from samite.rules.binding import Bound
from samite.rules.planning import OpPlan

__all__ = ["Shards", "place_of", "valid_mask"]


def axis_index(axis: str) -> torch.Tensor:
    return torch.ops.samite.axis_index(axis)


def place_of(factor: Factor, mesh: Mapping[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(first global index, valid length) of this rank's shard of a factor, both 0-d int64: `Factor.span` in torch."""
    first = torch.zeros((), dtype=torch.int64)
    valid = torch.full((), factor.size, dtype=torch.int64)
    for axis, chunk in zip(factor.axes, factor.chunks(mesh)[1:], strict=True):
        at = axis_index(axis) * chunk
        first, valid = first + at, (valid - at).clamp(0, chunk)
    return first, valid


def valid_mask(factors: Dim, mesh: Mapping[str, int]) -> torch.Tensor:
    """Bool, one entry a local position of a dim: whether it holds an element rather than padding."""
    whole = torch.ones((1,), dtype=torch.bool)
    for factor in factors:
        here = torch.arange(factor.local(mesh)) < place_of(factor, mesh)[1]
        whole = (whole[:, None] & here).reshape(-1)
    return whole


def along(vector: torch.Tensor, dim: int, ndim: int) -> torch.Tensor:
    """A 1-d tensor shaped to broadcast along dim `dim` of `ndim`."""
    return vector.view([-1 if i == dim % ndim else 1 for i in range(ndim)])


class Shards:
    """The place of the shards that one call of an op works on."""

    def __init__(self, bound: Bound, plan: OpPlan, mesh: Mapping[str, int]) -> None:
        self.bound, self.plan, self.mesh = bound, plan, mesh

    def letters(self, word: str) -> list[str]:
        """The letters of a run, or the letter itself."""
        return self.bound.runs.get(word, [word])

    def factors(self, letter: str) -> Dim:
        return self.plan.given.get(letter, (Factor(self.bound.sizes[letter]),))

    def axes(self, word: str) -> tuple[str, ...]:
        """The axes that split a letter (or any of a run), major first."""
        return tuple(axis for letter in self.letters(word) for axis in axes_of(self.factors(letter)))

    def split(self, word: str) -> bool:
        return bool(self.axes(word))

    def size(self, letter: str) -> int:
        """Global size."""
        return self.bound.sizes[letter]

    def local_size(self, letter: str) -> int:
        """Local size, padding included."""
        return prod(f.local(self.mesh) for f in self.factors(letter))

    def result_shape(self, result: int = 0) -> list[int]:
        """Local shape of a result."""
        return list(self.plan.results[result].local_shape(self.mesh))

    def parts(self, axes: Sequence[str]) -> int:
        return prod(self.mesh[a] for a in axes)

    def all_reduce(self, x: torch.Tensor, word: str, reduce_type: str = "sum") -> torch.Tensor:
        """Reduced over the ranks that hold other parts of a letter (or run)."""
        axes = self.axes(word)
        return torch.ops.samite.all_reduce(x, join_axes(axes), reduce_type) if axes else x

    def all_gather(self, x: torch.Tensor, letter: str, dim: int) -> torch.Tensor:
        """The buffers of a letter's other ranks, joined along `dim`, major axis first."""
        axes = self.axes(letter)
        return torch.ops.samite.all_gather(x, join_axes(axes), dim % x.ndim, self.parts(axes)) if axes else x

    def valid(self, letter: str) -> torch.Tensor | None:
        """Which local positions of a letter hold elements, or None if all of them do."""
        factors = self.factors(letter)
        return valid_mask(factors, self.mesh) if any(f.padded(self.mesh) for f in factors) else None

    def mask(self, x: torch.Tensor, letter: str, dim: int, fill: float) -> torch.Tensor:
        """`x` with `fill` where a letter's dim is padding."""
        valid = self.valid(letter)
        if valid is None:
            return x
        return torch.where(along(valid, dim, x.ndim), x, torch.full((), fill, dtype=x.dtype))

    def positions(self, letter: str) -> torch.Tensor:
        """int64, the global index of every local position of a letter; padding has some index beyond its shard."""
        whole = torch.zeros((1,), dtype=torch.int64)
        for factor in self.factors(letter):
            first = place_of(factor, self.mesh)[0]
            here = first + torch.arange(factor.local(self.mesh))
            whole = (whole[:, None] * factor.size + here).reshape(-1)
        return whole

    def locate(self, letter: str, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(local position of each global index, 0 where it is elsewhere; whether it is here). Right for any factors."""
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

    def call(self, function: Any, operands: Sequence[torch.Tensor]) -> Any:
        """`function(self, *operands as the rule has them, **literals)`; an absent operand is None."""
        count = 1 + max(self.bound.roles, default=-1)
        arguments: list[Any] = [None] * max(count, self._operand_count())
        for role, tensor in zip(self.bound.roles, operands, strict=True):
            if role in self._listed():
                arguments[role] = [*(arguments[role] or []), tensor]
            else:
                arguments[role] = tensor
        names = {k: v for k, v in self.bound.op.literals.items() if k not in self._tensor_names()}
        return function(self, *arguments, **names)

    def _spelling(self) -> Any:
        return self.bound.rule.spelling(self.bound.op)

    def _operand_count(self) -> int:
        return len(self._spelling().operands)

    def _listed(self) -> set[int]:
        return {i for i, term in enumerate(self._spelling().operands) if term.list}

    def _tensor_names(self) -> set[str]:
        from samite.ir.graph import overload

        if self.bound.op.name.startswith("vtensor."):
            return set()
        return {a.name for a in overload(self.bound.op.name)._schema.arguments if "Tensor" in str(a.type)}
