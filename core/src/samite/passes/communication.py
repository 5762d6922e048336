"""What collectives cost: seconds until every rank of a group has its result, as functions of bytes, group and links.

A message of m bytes takes alpha + m beta (Hockney 1994), alpha a link's latency and beta the inverse of its bandwidth;
reducing a byte takes gamma. An all_reduce of n bytes among p ranks then takes

    direct    alpha + (p - 1) n (beta + gamma)
    ring      2 (p - 1) alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma
    tree      ceil(log2 p) (alpha + n beta + n gamma), and 2 (alpha + n beta) + n gamma if p is no power of two

(Thakur, Rabenseifner & Gropp 2005: the ring of their section 4.5, and recursive doubling). Hierarchical is a
reduce_scatter inside, an all_reduce of the part across, and an all_gather inside. Measured times go before formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log2, prod, sqrt

from samite.ir.collectives import AUTO
from samite.passes.traffic import Collective, itemsize
from samite.topology import DeviceSpec, Link, Topology, along

__all__ = ["Communication", "all_reduce_seconds", "best_chunk"]

REDUCING = 3
"""Bytes of memory traffic a byte that is reduced: two are read, one is written."""


def all_reduce_seconds(
    algorithm: str, nbytes: float, ranks: int, link: Link, device: DeviceSpec, chunk_bytes: int = 0
) -> float:
    """By formula, for "direct", "ring" or "tree". A ring in chunks pays a message for each, and reduces all but one
    while the next is on its way."""
    alpha, beta, gamma = link.latency, 1 / link.bandwidth, REDUCING / device.bandwidth
    others = ranks - 1
    if ranks == 1:
        return 0.0
    if algorithm == "direct":
        return alpha + others * nbytes * (beta + gamma)
    if algorithm == "tree":
        folded = 2 * (alpha + nbytes * beta) + nbytes * gamma if ranks & others else 0.0
        return int(log2(ranks)) * (alpha + nbytes * (beta + gamma)) + folded
    assert algorithm == "ring", algorithm
    part = nbytes / ranks
    chunk = min(chunk_bytes, part) if chunk_bytes else part
    messages = ceil(part / chunk) if chunk else 1
    return others * (2 * (messages * alpha + part * beta) + chunk * gamma)


def best_chunk(nbytes: float, ranks: int, link: Link, device: DeviceSpec) -> int:
    """The bytes of a ring's pieces that cost least: m/c messages against the reduction of one piece, which nothing
    hides, so c = sqrt(2 m alpha / gamma) of a part of m bytes, as a power of two. 0 if the part is best sent whole."""
    part, gamma = nbytes / ranks, REDUCING / device.bandwidth
    if not part or not link.latency:
        return 0
    chunk = 1 << max(0, round(log2(sqrt(2 * part * link.latency / gamma))))
    whole, cut = (all_reduce_seconds("ring", nbytes, ranks, link, device, size) for size in (0, chunk))
    return chunk if chunk < part and cut < whole else 0


class Communication:
    """Prices on one mesh. A group over several axes has the link of the slowest of them."""

    def __init__(self, mesh: Mapping[str, int], topology: Topology) -> None:
        self.mesh, self.topology = dict(mesh), topology

    def seconds(self, found: Collective) -> float:
        """Of a collective of a local program, once."""
        if found.verb == "all_reduce":
            return self.all_reduce(found.algorithm, prod(found.shape) * itemsize(found.dtype), found.axes, found.chunk)
        return self.received(found.nbytes, found.axes)

    def received(self, nbytes: float, axes: Sequence[str]) -> float:
        """Until each rank has received so many bytes, by the best algorithm for many."""
        ranks = self.ranks(axes)
        return max((self.topology.cost(nbytes, axis) for axis in axes if self.mesh[axis] > 1), default=0.0) * (
            ranks > 1
        )

    def all_reduce(self, algorithm: str, nbytes: float, axes: Sequence[str], chunk_bytes: int = 0) -> float:
        """Of an operand of so many bytes. "auto" is what the backend does by itself: as measured, else a ring."""
        ranks, link = self.ranks(axes), self.slowest(axes, nbytes)
        if ranks == 1 or not nbytes:
            return 0.0
        if algorithm == AUTO and link.times:
            return self.received(2 * (ranks - 1) / ranks * nbytes, axes)
        if measured := dict(link.algorithms).get(algorithm):
            return along(measured, nbytes, link.bandwidth)
        return all_reduce_seconds(
            "ring" if algorithm == AUTO else algorithm, nbytes, ranks, link, self.topology.device, chunk_bytes
        )

    def ranks(self, axes: Sequence[str]) -> int:
        return prod(self.mesh[axis] for axis in axes)

    def slowest(self, axes: Sequence[str], nbytes: float) -> Link:
        return max(
            (self.topology.link(axis) for axis in axes if self.mesh[axis] > 1),
            default=Link(),
            key=lambda x: x.seconds(nbytes),
        )
