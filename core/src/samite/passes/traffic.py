"""What collectives move: bytes that each rank receives, in all layers that count them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import torch

from samite.ir.collectives import AUTO
from samite.ir.graph import Graph, Node, Source

__all__ = ["Collective", "collectives", "is_collective", "itemsize"]

_VERBS = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "start"))


@cache
def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return 0 if dtype == "none" else getattr(torch, dtype).itemsize


@dataclass(frozen=True)
class Collective:
    """One collective of a local program: `nbytes` that a rank receives, the `source` line that caused it.

    `node` is the index of its node in the function, or of the op whose region it is in: `inside` names such ops,
    outermost first ("cond", "while", "scan"). It runs `times` a step: a branch counts as taken, a `while` as run once.
    `algorithm` and `chunk` (bytes of a piece) say how an all_reduce is carried out, `started` whether it is waited for
    elsewhere.
    """

    verb: str
    axes: tuple[str, ...]
    nbytes: int
    source: Source
    shape: tuple[int, ...]
    dtype: str
    node: int
    times: int = 1
    inside: tuple[str, ...] = ()
    algorithm: str = AUTO
    chunk: int = 0
    started: bool = False


def is_collective(node: Node) -> bool:
    """Whether a node moves data between ranks, or starts to."""
    return node.op.name.startswith("dist.") and node.op.name.removeprefix("dist.") in _VERBS


def collectives(graph: Graph, mesh: Mapping[str, int]) -> Iterator[Collective]:
    """Every collective of a partitioned function, in program order."""
    for index, node in enumerate(graph.nodes):
        for region in node.op.regions:
            times = node.op.operands[node.op.literals["carried"]].shape[0] if node.op.name == "dist.scan" else 1
            for each in collectives(region, mesh):
                inside = (node.op.name.removeprefix("dist."), *each.inside)
                yield replace(each, node=index, times=times * each.times, inside=inside)
        if is_collective(node):
            verb = node.op.literals.get("collective", node.op.name.removeprefix("dist."))
            axes: tuple[str, ...] = node.op.literals["axes"]
            type = node.op.operands[0]
            nbytes = _elements(node, verb, prod(mesh[a] for a in axes)) * itemsize(type.dtype)
            literals = node.op.literals
            yield Collective(
                verb,
                axes,
                nbytes,
                node.source,
                type.shape,
                type.dtype,
                index,
                algorithm=literals.get("algorithm", AUTO),
                chunk=literals.get("chunk_bytes", 0),
                started=node.op.name == "dist.start",
            )


def _elements(node: Node, verb: str, peers: int) -> int:
    """Elements received, by the bandwidth-optimal algorithm; an all_reduce is a reduce_scatter and an all_gather."""
    n = prod(node.op.operands[0].shape)
    match verb:
        case "all_reduce":
            return 2 * (peers - 1) * -(-n // peers)
        case "all_gather":
            return (peers - 1) * n
        case "reduce_scatter" | "all_to_all":
            return (peers - 1) * (n // peers)
        case _:
            return n
