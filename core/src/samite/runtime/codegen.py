"""A local program as the source of a Python generator: one statement a node, values deleted after their last use.

    def main(inputs):
        (tokens, weight, ) = inputs
        embedding = aten_embedding_default(weight, tokens)
        all_reduce = yield collective_0, embedding; del embedding
        ...
        return (loss, )

A generator, because one text serves all who run it: at each collective it yields (`Collective`, tensor) and is sent the
result. What differs between ranks are numbers (`index_tp`), which are bound when the text is. Regions of control flow
are generators too, run by `samite.runtime.control`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from types import CodeType
from typing import Any

import torch
from torch import fx

from samite.ir.graph import overload
from samite.ir.regions import call_of, is_control_flow
from samite.layout import Factor
from samite.mesh import Mesh
from samite.runtime import control
from samite.runtime.writer import Writer, line_of

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
        namespace: dict[str, Any] = {"torch": torch, "control": control, **self.constants, **names}
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
    text = _Text()
    writer = Writer(module)
    _function(text, "main", module, writer, rewritten or {})
    source = "\n".join(text.lines) + "\n"
    return Code(name, source, tuple(text.statements), writer.ops, writer.constants, writer.places, writer.lengths)


@dataclass
class _Text:
    """Lines of source, each with what it came from."""

    lines: list[str] = field(default_factory=list[str])
    statements: list[Statement] = field(default_factory=list[Statement])

    def add(self, line: str, statement: Statement = Statement()) -> None:
        self.lines.append(line)
        self.statements.append(statement)


def _function(
    text: _Text,
    name: str,
    module: fx.GraphModule,
    writer: Writer,
    rewritten: Mapping[fx.Node, Callable[[Writer], str]],
) -> None:
    """One generator, after those of its regions."""
    for node in module.graph.nodes:
        if is_control_flow(node.target):
            for region in call_of(node).functions:
                inner = writer.inside(region)
                _function(text, writer.region(region), region, inner, {})
    last = _last_uses(module.graph)
    inputs = module.graph.find_nodes(op="placeholder")
    text.add(f"def {name}(inputs):")
    text.add(f"    ({''.join(f'{node.name}, ' for node in inputs)}) = inputs")
    yields = False
    for node in module.graph.nodes:
        if node.op == "placeholder" or _is_region(module, node):
            continue
        statement = Statement(str(node.target), line_of(node))
        if node.op == "output":
            results = node.args[0] if isinstance(node.args[0], (list, tuple)) else (node.args[0],)
            text.add(f"    return ({''.join(f'{writer.literal(result)}, ' for result in results)})", statement)
        else:
            call = rewritten[node](writer) if node in rewritten else writer.call(node)
            yields = yields or call.startswith("yield ")
            freed = "".join(f"; del {value.name}" for value in last[node] if not _is_region(module, value))
            text.add(f"    {node.name} = {call}{freed}", statement)
    if not yields:
        text.add("    yield")  # never reached: makes it a generator all the same


def _is_region(module: fx.GraphModule, node: fx.Node) -> bool:
    return node.op == "get_attr" and isinstance(getattr(module, str(node.target), None), fx.GraphModule)


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
