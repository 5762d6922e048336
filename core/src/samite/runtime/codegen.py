"""A local program as the source of a Python generator: one statement a node, values deleted after their last use.

    def main(inputs):
        (tokens, weight, ) = inputs
        embedding = aten_embedding_default(weight, tokens)
        all_reduce = yield collective_0, embedding; del embedding
        ...
        return (loss, )

A generator, because one text serves all who run it: at each collective it yields (`Collective`, tensor) and is sent the
result. What differs between ranks are numbers (`index_tp`), which are bound when the text is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from types import CodeType
from typing import Any

import torch
from torch import fx

from samite.ir.graph import overload
from samite.layout import Factor
from samite.mesh import Mesh
from samite.runtime.writer import Collective, Writer, line_of

__all__ = ["Code", "Main", "Statement", "generate"]

Main = Callable[[Sequence[torch.Tensor | int]], Generator[Any, Any, tuple[torch.Tensor, ...]]]
"""A bound program: takes a step's local inputs, and sizes if it is for many; yields (`Collective`, tensor), is sent
results, returns the outputs."""


@dataclass(frozen=True)
class Statement:
    """What a line of the source came from, for errors: the op, and the user's line if known."""

    op: str = ""
    where: str = ""


@dataclass(frozen=True)
class Code:
    """A program's source and what its names stand for. Picklable; needs no compiler to load.

    `ops` are full names ("aten.add.Tensor"); `places` are axes: the name stands for the rank's index along them;
    `lengths` are axes, too: it stands for a function from a size to the valid length of the rank's shard of it.
    """

    name: str
    source: str
    statements: tuple[Statement, ...]
    ops: Mapping[str, str]
    constants: Mapping[str, Any]
    places: Mapping[str, tuple[str, ...]]
    lengths: Mapping[str, tuple[str, ...]]

    @property
    def filename(self) -> str:
        return f"<samite program {self.name}>"

    def bind(self, mesh: Mesh, rank: int, **names: Any) -> Main:
        """The program of one rank; `names` are further names that rewritten statements use.

        Raises UnsupportedOp if an op is not registered in this process.
        """
        namespace: dict[str, Any] = {"torch": torch, **self.constants, **names}
        namespace.update((name, overload(op)) for name, op in self.ops.items())
        namespace.update((name, mesh.peers(rank, axes).index(rank)) for name, axes in self.places.items())
        at = mesh.coordinates(rank)
        namespace.update((name, cache(partial(_length, axes, mesh, at))) for name, axes in self.lengths.items())
        exec(_compiled(self.source, self.filename), namespace)
        return namespace["main"]


@lru_cache(maxsize=32)
def _compiled(source: str, filename: str) -> CodeType:
    """Python's own code: programs that differ in sizes alone share it."""
    return compile(source, filename, "exec")


def generate(
    module: fx.GraphModule, name: str, rewritten: Mapping[fx.Node, Callable[[Writer], str]] | None = None
) -> Code:
    """The source of a local program of aten ops, custom ops and the collectives of `samite.ir.collectives`.

    It takes the placeholders' values in order, integers perhaps among them, and returns the tuple of the graph's
    outputs. `rewritten` writes the right-hand side of single nodes in another way. Raises UnsupportedOp for a node that
    is neither a torch op, a constant nor `operator.getitem`.
    """
    graph, rewritten = module.graph, rewritten or {}
    writer = Writer(module)
    last = _last_uses(graph)
    inputs = graph.find_nodes(op="placeholder")
    lines = ["def main(inputs):", f"    ({''.join(f'{node.name}, ' for node in inputs)}) = inputs"]
    statements = [Statement(), Statement()]
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            results = node.args[0] if isinstance(node.args[0], (list, tuple)) else (node.args[0],)
            lines.append(f"    return ({''.join(f'{writer.literal(result)}, ' for result in results)})")
        else:
            call = rewritten[node](writer) if node in rewritten else writer.call(node)
            lines.append(f"    {node.name} = {call}" + "".join(f"; del {value.name}" for value in last[node]))
        statements.append(Statement(str(node.target), line_of(node)))
    if not any(isinstance(value, Collective) for value in writer.constants.values()):
        lines.append("    yield")  # never reached: makes it a generator all the same
        statements.append(Statement())
    return Code(
        name, "\n".join(lines) + "\n", tuple(statements), writer.ops, writer.constants, writer.places, writer.lengths
    )


def _length(axes: tuple[str, ...], mesh: Mesh, at: Mapping[str, int], size: int) -> int:
    return Factor(size, axes).span(mesh, at)[1]


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For every node the values that no later node reads, itself included if none ever does."""
    last: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        last[node] = [value for value in dict.fromkeys((node, *node.all_input_nodes)) if value not in seen]
        seen.update(last[node])
    return last
