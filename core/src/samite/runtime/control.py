"""How a rank runs control flow: over the generators of its regions, whose collectives pass through.

What decides (a predicate, a condition) is the same on every rank, so all ranks take the same way. A region takes and
gives tuples, like the program (`samite.runtime.codegen`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["cond", "scan", "while_loop"]

Region = Callable[[Sequence[Tensor]], Generator[Any, Any, tuple[Tensor, ...]]]
Running = Generator[Any, Any, tuple[Tensor, ...]]


def cond(predicate: Tensor, then: Region, otherwise: Region, inputs: Sequence[Tensor]) -> Running:
    return (yield from (then if predicate else otherwise)(inputs))


def while_loop(condition: Region, body: Region, carried: Sequence[Tensor], others: Sequence[Tensor]) -> Running:
    while True:
        (goes_on,) = yield from condition((*carried, *others))
        if not goes_on:
            return tuple(carried)
        carried = yield from body((*carried, *others))


def scan(body: Region, carried: Sequence[Tensor], sliced: Sequence[Tensor], others: Sequence[Tensor]) -> Running:
    """Carried values, then the other results of the iterations, stacked along dim 0."""
    steps, count = sliced[0].shape[0], len(carried)
    stacked: list[Tensor] = []
    for step in range(steps):
        made = yield from body((*carried, *(x[step] for x in sliced), *others))
        carried, slices = made[:count], made[count:]
        stacked = stacked or [torch.empty((steps, *x.shape), dtype=x.dtype) for x in slices]
        for whole, part in zip(stacked, slices, strict=True):
            whole[step] = part
    return (*carried, *stacked)
