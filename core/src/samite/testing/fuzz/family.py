"""A family: one way to go on with a program. Each draws one call of some alike ops as an expression in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from samite.testing.fuzz.pool import Pool

__all__ = ["FAMILIES", "Draw", "Family", "family"]

Draw = Callable[[Pool], str]


@dataclass(frozen=True)
class Family:
    """`keeps` says that the result is exact if the operands are: whole numbers stay whole, in any order of work."""

    name: str
    draw: Draw
    keeps: bool


FAMILIES: list[Family] = []


def family(*, keeps: bool) -> Callable[[Draw], Draw]:
    """Make a family of the function below."""

    def add(draw: Draw) -> Draw:
        FAMILIES.append(Family(draw.__name__, draw, keeps))
        return draw

    return add
