"""Programs of one form as one: the numbers in which they differ become arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Sizes"]


@dataclass(frozen=True)
class Sizes:
    """The numbers of programs of one form (`samite.ir.numbers`), of which some vary.

    `numbers` are those of one program; `columns` says for each of them which size it is, or -1 if it is the same in
    all. Numbers that are equal in each of the programs are one size.
    """

    numbers: tuple[int, ...]
    columns: tuple[int, ...]

    @staticmethod
    def of(one: Sequence[int], other: Sequence[int]) -> Sizes:
        """The sizes of two programs of one form."""
        known: dict[tuple[int, int], int] = {}
        columns = [
            -1 if pair[0] == pair[1] else known.setdefault(pair, len(known)) for pair in zip(one, other, strict=True)
        ]
        return Sizes(tuple(other), tuple(columns))

    @property
    def count(self) -> int:
        return max(self.columns, default=-1) + 1

    def values(self, numbers: Sequence[int]) -> tuple[int, ...] | None:
        """The sizes of another program of the form; None if it differs in more."""
        found: dict[int, int] = {}
        for here, there, column in zip(self.numbers, numbers, self.columns, strict=True):
            if there != (here if column < 0 else found.setdefault(column, there)):
                return None
        return tuple(found[column] for column in range(self.count))
