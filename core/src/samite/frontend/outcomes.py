"""What a traced function leaves behind, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["TENSOR", "Outcome"]

TENSOR = object()
"""Stands for a tensor among the leaves of a return value; the others stand for themselves."""


@dataclass(frozen=True)
class Outcome:
    """One result of the function. `leaf` is the index of the leaf that it is the new value of, or -1. `traced` says
    whether an output has an autograd graph in the function, through which one could go back from outside."""

    name: str
    kind: Literal["output", "state"]
    leaf: int = -1
    owner: str = ""
    traced: bool = False
