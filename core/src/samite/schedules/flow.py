"""What the functions of a pipeline hand to each other. Values are numbered; a program's arguments come first."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["INDEX", "Join", "Port", "Transfer"]

INDEX = -1
"""The value that is the number of the microbatch, a 0-d int64."""


class Port(NamedTuple):
    """A value as a function reads it: the part of it that is the microbatch's along `cut`, or all of it (-1)."""

    value: int
    cut: int = -1


class Join(NamedTuple):
    """A value that is made of one term a microbatch, by a reduction ("sum", "prod", "max", "min"), or by laying them
    end to end along `dim` ("cat"). With one microbatch the term is all ("last")."""

    value: int
    term: int
    kind: str
    dim: int = 0


class Transfer(NamedTuple):
    """A value on its way from the ranks of one index of the pipeline's axis to those of another: each microbatch's, or
    one for all."""

    value: int
    source: int
    target: int
    each: bool
