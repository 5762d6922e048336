"""All-reduce by rounds of point-to-point messages: what "direct", "ring" and "tree" name.

Written over one function, `send(x, pairs)`: each source of `pairs` sends its `x`, of one size on all ranks, to its
target; what it gives is under way, and received by who is a target. So they run on whatever can permute, and in one
order of terms everywhere: all ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from samite.hal.driver import InFlight
from samite.runtime.interpreter import REDUCE

__all__ = ["ALGORITHMS", "Pairs", "Send"]

Pairs = Sequence[tuple[int, int]]
Send = Callable[[torch.Tensor, Pairs], InFlight]
Algorithm = Callable[[torch.Tensor, str, int, int, int, Send], torch.Tensor]


def direct(x: torch.Tensor, reduce_type: str, ranks: int, mine: int, chunk: int, send: Send) -> torch.Tensor:
    """Everyone sends all to everyone, and reduces: one message deep, (ranks - 1) times the data."""
    rounds = [send(x, _shift(ranks, by)) for by in range(1, ranks)]
    terms = {(mine - by) % ranks: under_way.wait() for by, under_way in enumerate(rounds, start=1)} | {mine: x}
    total = terms[0].clone()
    for rank in range(1, ranks):
        REDUCE[reduce_type](total, terms[rank], out=total)
    return total


def ring(x: torch.Tensor, reduce_type: str, ranks: int, mine: int, chunk: int, send: Send) -> torch.Tensor:
    """A reduce_scatter and an all_gather around a ring (Patarasuk & Yuan 2009): 2 (ranks - 1) messages deep, and no
    rank sends more than twice the data. With `chunk` elements a piece, one is reduced while the next is sent."""
    size = -(-x.numel() // ranks)
    padded = x.new_zeros(ranks * size)
    padded[: x.numel()] = x
    parts, around = padded.view(ranks, size), _shift(ranks, 1)
    pieces = [slice(start, start + (chunk or size)) for start in range(0, size, chunk or size)]

    def step(sent: torch.Tensor) -> list[InFlight]:
        return [send(sent[piece], around) for piece in pieces]

    for by in range(ranks - 1):
        into = parts[(mine - by - 1) % ranks]
        for piece, under_way in zip(pieces, step(parts[(mine - by) % ranks]), strict=True):
            REDUCE[reduce_type](into[piece], under_way.wait(), out=into[piece])
    for by in range(ranks - 1):
        into = parts[(mine - by) % ranks]
        for piece, under_way in zip(pieces, step(parts[(mine - by + 1) % ranks]), strict=True):
            into[piece] = under_way.wait()
    return padded[: x.numel()]


def tree(x: torch.Tensor, reduce_type: str, ranks: int, mine: int, chunk: int, send: Send) -> torch.Tensor:
    """Recursive doubling (Thakur, Rabenseifner & Gropp 2005): pairs at distance 1, 2, 4, … exchange what they have.
    Of a number that is no power of two, each rank too many hands its term to a neighbour first, and is told last."""
    power = 1 << (ranks.bit_length() - 1)
    extra = ranks - power
    members = [*range(1, 2 * extra, 2), *range(2 * extra, ranks)]  # the even ones below 2 * extra sit out
    total = x.clone()
    if extra:
        received = send(total, [(rank, rank + 1) for rank in range(0, 2 * extra, 2)]).wait()
        if mine < 2 * extra and mine % 2:
            REDUCE[reduce_type](received, total, out=total)
    distance = 1
    while distance < power:
        received = send(total, [(rank, members[at ^ distance]) for at, rank in enumerate(members)]).wait()
        if mine in members:
            REDUCE[reduce_type](total, received, out=total)
        distance *= 2
    if extra:
        received = send(total, [(rank + 1, rank) for rank in range(0, 2 * extra, 2)]).wait()
        if mine < 2 * extra and not mine % 2:
            return received
    return total


def _shift(ranks: int, by: int) -> Pairs:
    return [(rank, (rank + by) % ranks) for rank in range(ranks)]


ALGORITHMS: dict[str, Algorithm] = {"direct": direct, "ring": ring, "tree": tree}
"""By name: from this rank's operand, a contiguous vector of at least one element, to the reduction. `mine` is this
rank's place among the `ranks`."""
