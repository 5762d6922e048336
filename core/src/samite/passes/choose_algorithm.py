"""choose_algorithm: each all_reduce is carried out in the way that the topology makes cheapest.

Direct, ring (in pieces, or not) and tree are attributes of the op, for backends that know them. Hierarchical is written
out: a reduce_scatter over the axes with the faster links, an all_reduce over the others, of which the same is asked
again, and an all_gather back. So no backend needs to know it. What no peer divides evenly is padded. An all_reduce that
nothing beats by `MARGIN` stays as the backend does it, as do all over axes of whose links nothing is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import torch

from samite.ir.build import Builder, Value, rewrite
from samite.ir.collectives import AUTO, join_axes
from samite.ir.context import TensorType
from samite.ir.graph import Graph, Node
from samite.ir.importer import trace
from samite.ir.module import Module
from samite.passes.communication import Communication, best_chunk
from samite.passes.traffic import itemsize
from samite.passes.words import bytes_in_words, seconds_in_words
from samite.topology import Topology

__all__ = ["ChooseAlgorithm"]

MARGIN = 0.1
"""The part of its time that a way must save: neither formulas nor measured times tell smaller differences."""


@dataclass(frozen=True)
class _Way:
    """How to reduce over `axes`, and the seconds that it takes. `across` is how the parts are reduced over the other
    axes, if these are the inner ones of a hierarchy."""

    axes: tuple[str, ...]
    seconds: float
    algorithm: str = AUTO
    chunk: int = 0
    across: _Way | None = None

    def __str__(self) -> str:
        if self.across is not None:
            over = "" if self.across.across else f"over {'·'.join(self.across.axes)} "
            return f"inside {'·'.join(self.axes)}, then {over}{self.across}"
        if self.algorithm == AUTO:
            return "as the backend does"
        return self.algorithm + (f" in pieces of {bytes_in_words(self.chunk)}" if self.chunk else "")


class ChooseAlgorithm:
    """For the links of `topology`, and a backend that can be asked for `algorithms`."""

    name = "choose_algorithm"

    def __init__(self, topology: Topology, algorithms: Sequence[str] = ()) -> None:
        self.topology, self.algorithms = topology, tuple(algorithms)
        self.notes: tuple[str, ...] = ()

    def run(self, module: Module) -> Module:
        chooser = _Chooser(module, self.topology, self.algorithms)
        made = rewrite(module, chooser.body)
        self.notes = tuple(chooser.in_words())
        return made


class _Chooser:
    def __init__(self, module: Module, topology: Topology, algorithms: tuple[str, ...]) -> None:
        self.mesh, self.topology, self.algorithms = module.mesh, topology, algorithms
        self.prices = Communication(module.mesh, topology)
        self.ways: dict[tuple[float, tuple[str, ...]], _Way] = {}
        self.taken: Counter[tuple[float, tuple[str, ...]]] = Counter()

    def body(self, graph: Graph, build: Builder) -> list[Value]:
        values: dict[int, Value] = dict(enumerate(build.arguments))
        for node in graph.nodes:
            operands = [values[o] for o in node.operands]
            if node.op.name == "dist.all_reduce" and node.op.literals["algorithm"] == AUTO:
                made: Sequence[Value] = [self._reduced(node, operands[0], build)]
            else:
                made = build.op(node.op, operands, [graph.types[r] for r in node.results], node.location)
            values.update(zip(node.results, made, strict=True))
        return [values[r] for r in graph.returns]

    def in_words(self) -> Iterator[str]:
        """A line for all that are alike and take another way."""
        for (nbytes, axes), count in self.taken.items():
            way, before = self.ways[nbytes, axes], self.prices.all_reduce(AUTO, nbytes, axes)
            if way.algorithm == AUTO and way.across is None:
                continue
            times = f" ({count} times)" if count > 1 else ""
            yield (
                f"{bytes_in_words(int(nbytes))} over {'·'.join(axes)}: {way}, {seconds_in_words(way.seconds)} "
                f"instead of {seconds_in_words(before)}{times}"
            )

    def _reduced(self, node: Node, operand: Value, build: Builder) -> Value:
        type = node.op.operands[0]
        nbytes, axes = prod(type.shape) * itemsize(type.dtype), tuple(node.op.literals["axes"])
        self.taken[nbytes, axes] += 1
        way = self._way(nbytes, axes)
        if way.across is None:
            how = {"algorithm": way.algorithm, "chunk_bytes": way.chunk}
            return build.dist(node.op.name, [operand], [type], {**node.op.literals, **how}, node.location)[0]
        graph = _written(type, node.op.literals["reduce_type"], way, tuple(self.mesh.items()))
        return build.inline(graph, [operand], node.location)[0]

    def _way(self, nbytes: float, axes: tuple[str, ...]) -> _Way:
        found = self.ways.get((nbytes, axes))
        if found is None:
            found = self.ways[nbytes, axes] = self._chosen(nbytes, axes)
        return found

    def _chosen(self, nbytes: float, axes: tuple[str, ...]) -> _Way:
        plain = _Way(axes, self.prices.all_reduce(AUTO, nbytes, axes))
        real = [axis for axis in axes if self.mesh[axis] > 1]
        if not real or not all(map(self.topology.describes, real)):
            return plain
        best = min((*self._flat(nbytes, axes), *self._nested(nbytes, axes)), key=lambda way: way.seconds, default=plain)
        return best if best.seconds < (1 - MARGIN) * plain.seconds else plain

    def _flat(self, nbytes: float, axes: tuple[str, ...]) -> Iterator[_Way]:
        ranks, link = self.prices.ranks(axes), self.prices.slowest(axes, nbytes)
        for algorithm in self.algorithms:
            if link.times and algorithm not in dict(link.algorithms):
                continue  # formulas are not to be held against measured times
            chunk = best_chunk(nbytes, ranks, link, self.topology.device) if algorithm == "ring" else 0
            yield _Way(axes, self.prices.all_reduce(algorithm, nbytes, axes, chunk), algorithm, chunk)

    def _nested(self, nbytes: float, axes: tuple[str, ...]) -> Iterator[_Way]:
        """Hierarchies with the axes of the fastest links inside."""
        by_speed = sorted(axes, key=lambda axis: self.topology.link(axis).seconds(nbytes))
        for count in range(1, len(axes)):
            inner, outer = (tuple(a for a in axes if (a in by_speed[:count]) is inside) for inside in (True, False))
            ranks = self.prices.ranks(inner)
            if ranks == 1 or self.prices.ranks(outer) == 1:
                continue
            inside = 2 * self.prices.received((ranks - 1) / ranks * nbytes, inner)
            across = self._way(-(-nbytes // ranks), outer)
            yield _Way(inner, inside + across.seconds, across=across)


@cache
def _written(type: TensorType, reduce_type: str, way: _Way, mesh_items: tuple[tuple[str, int], ...]) -> Graph:
    """An all_reduce in a way of its own."""
    mesh = dict(mesh_items)

    def reduced(x: torch.Tensor, way: _Way) -> torch.Tensor:
        if way.across is None:
            return torch.ops.samite.all_reduce(x, join_axes(way.axes), reduce_type, way.algorithm, way.chunk)
        inner, ranks = join_axes(way.axes), prod(mesh[axis] for axis in way.axes)
        even = bool(x.ndim) and x.shape[0] % ranks == 0
        rows = x if even else torch.nn.functional.pad(x.reshape(-1), [0, -x.numel() % ranks])
        part = torch.ops.samite.reduce_scatter(rows, inner, 0, reduce_type, ranks)
        whole = torch.ops.samite.all_gather(reduced(part, way.across), inner, 0, ranks)
        return whole if even else whole[: x.numel()].reshape(x.shape)

    return trace(lambda x: reduced(x, way), [type])
