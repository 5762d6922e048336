"""The asynchronous form of a collective: `start` gives a value in flight, which only its `wait` may use.

    start(x, collective, axes, dims, pairs, reduce_type, parts, token, wait_on, barrier_id, algorithm, chunk_bytes)
        -> x in flight
    wait(x in flight) -> what the collective gives

`collective` is one of `COLLECTIVES`; `dims`, `pairs`, `reduce_type`, `algorithm` and `chunk_bytes` are its arguments,
empty ("auto" and 0) where it has none.
`token` numbers the starts of a function, `wait_on` are tokens that must have arrived before, and what shares a
`barrier_id` (-1: none) arrives together. As torch ops: what runs as plain torch code does the whole at `start`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from samite.ir.collectives import AUTO, COLLECTIVES, chosen

__all__ = ["arguments_of", "started", "synchronous"]

_DIMS = {"all_gather": ("dim",), "reduce_scatter": ("dim",), "all_to_all": ("split_dim", "concat_dim")}
_RESIZED = frozenset(_DIMS)  # these take `parts`

_lib = torch.library.Library("samite", "FRAGMENT")
_lib.define(
    "start(Tensor x, str collective, str axes, int[] dims, int[] pairs, str reduce_type, int parts, int token,"
    " int[] wait_on, int barrier_id, str algorithm='auto', int chunk_bytes=0) -> Tensor"
)
_lib.define("wait(Tensor x) -> Tensor")


def started(
    collective: str, attributes: Mapping[str, Any], token: int, wait_on: Sequence[int] = (), barrier_id: int = -1
) -> dict[str, Any]:
    """The attributes of `dist.start` for a collective (without "dist.") with these attributes."""
    return {
        "collective": collective,
        "axes": attributes["axes"],
        "dims": tuple(attributes[name] for name in _DIMS.get(collective, ())),
        "pairs": attributes.get("pairs", ()),
        "reduce_type": attributes.get("reduce_type", ""),
        "token": token,
        "wait_on": tuple(wait_on),
        "barrier_id": barrier_id,
        "algorithm": attributes.get("algorithm", AUTO),
        "chunk_bytes": attributes.get("chunk_bytes", 0),
    }


def synchronous(attributes: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The collective of a `dist.start`, and its attributes."""
    verb = attributes["collective"]
    found = {"axes": attributes["axes"], **dict(zip(_DIMS.get(verb, ()), attributes["dims"], strict=True))}
    if verb in ("all_reduce", "reduce_scatter"):
        found["reduce_type"] = attributes["reduce_type"]
    if verb == "all_reduce":
        found |= {name: attributes[name] for name in ("algorithm", "chunk_bytes")}
    if verb == "permute":
        found["pairs"] = attributes["pairs"]
    return verb, found


def arguments_of(
    collective: str, dims: Sequence[int], pairs: Sequence[Any], reduce_type: str, algorithm: str, chunk_bytes: int
) -> tuple[Any, ...]:
    """What the torch op of a collective takes after `x` and `axes`, but for `parts`; of an all_reduce's algorithm what
    was `chosen`."""
    if collective == "permute":
        return (list(pairs),)
    return (*dims, reduce_type, *chosen(algorithm, chunk_bytes)) if reduce_type else tuple(dims)


def _start(
    x: torch.Tensor,
    collective: str,
    axes: str,
    dims: list[int],
    pairs: list[int],
    reduce_type: str,
    parts: int,
    token: int,
    wait_on: list[int],
    barrier_id: int,
    algorithm: str = AUTO,
    chunk_bytes: int = 0,
) -> torch.Tensor:
    assert collective in COLLECTIVES, collective
    arguments = arguments_of(collective, dims, pairs, reduce_type, algorithm, chunk_bytes)
    whole = (*arguments, parts) if collective in _RESIZED else arguments
    return getattr(torch.ops.samite, collective)(x, axes, *whole)


def _wait(x: torch.Tensor) -> torch.Tensor:
    return x.clone()  # an op may not return its operand


_lib.impl("start", _start, "CompositeExplicitAutograd")
_lib.impl("wait", _wait, "CompositeExplicitAutograd")
torch.library.register_fake("samite::start", _start)


@torch.library.register_fake("samite::wait")
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)
