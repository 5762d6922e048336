"""Steps: the vocabulary that resharding plans are written in, and what an executor does with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from samite.layout.factor import Factor

__all__ = ["Plan", "Step", "Verb"]

Verb = Literal["all_gather", "all_reduce", "reduce_scatter", "all_to_all", "shard", "owe"]


@dataclass(frozen=True)
class Step:
    """One step over one mesh axis, on the local buffer seen as one slot a factor.

    `factors` are those of all dims in order, before the step. With n = mesh[axis], i = the rank's index on it, and the
    peers those ranks that differ on it alone, in order of index, an executor

    1. reshapes its buffer to `slots(mesh)`;
    2. if there is a `target`, pads that slot at its end to n * `chunk(mesh)` (with anything: padding is undefined), and
       calls its n equal parts pieces;
    3. does the verb:

       ================  =====================================================================================
       shard             keep piece i of `target` (local)
       owe               keep the buffer if i == 0, else fill it with `identity(kind, dtype)` (local)
       all_reduce        reduce by `kind` over the peers
       reduce_scatter    reduce by `kind` over the peers, keep piece i of `target`
       all_gather        concatenate the peers' buffers along `source`
       all_to_all        send piece j of `target` to peer j, concatenate what comes along `source`
       ================  =====================================================================================

    4. if there is a `source`, cuts that slot at its end to `gathered(mesh)`.

    Then `target` has the axis as its innermost and `source` has lost it. After the last step the buffer is reshaped to
    the destination's local shape. `kind` is "" for verbs that do not reduce.
    """

    verb: Verb
    axis: str
    source: int | None
    target: int | None
    factors: tuple[Factor, ...]
    kind: str = ""

    def slots(self, mesh: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of the local buffer before the step, one dim a factor."""
        return tuple(f.local(mesh) for f in self.factors)

    def chunk(self, mesh: Mapping[str, int]) -> int:
        """The length of slot `target` after the step."""
        assert self.target is not None
        f = self.factors[self.target]
        return Factor(f.size, (*f.axes, self.axis)).local(mesh)

    def gathered(self, mesh: Mapping[str, int]) -> int:
        """The length of slot `source` after the step: what it was before `axis` cut it."""
        assert self.source is not None
        return self.factors[self.source].chunks(mesh)[-2]

    def peak(self, mesh: Mapping[str, int]) -> int:
        """Elements of the largest buffer that a rank holds in the step, padding included."""
        held, peers = list(self.slots(mesh)), mesh[self.axis]
        if self.target is not None:
            held[self.target] = peers * self.chunk(mesh)
        before = prod(held)
        if self.target is not None:
            held[self.target] //= peers
        if self.source is not None:
            held[self.source] *= peers
        return max(before, prod(held))


@dataclass(frozen=True)
class Plan:
    """The steps in order, and the elements that each rank receives in all of them (padding moves too).

    An all_reduce counts as reduce_scatter and all_gather.
    """

    steps: tuple[Step, ...]
    elements: int

    def peak(self, mesh: Mapping[str, int]) -> int:
        """Elements of the largest buffer that a rank holds on the way; 0 if there is no way to go."""
        return max((step.peak(mesh) for step in self.steps), default=0)
