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

import math
import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any

import torch
from torch import fx

from samite.errors import UnsupportedOp
from samite.ir.asynchronous import arguments_of
from samite.ir.collectives import split_axes
from samite.ir.graph import overload
from samite.layout import Factor
from samite.mesh import Mesh

__all__ = ["Code", "Collective", "Expression", "Main", "Statement", "Writer", "generate"]

Main = Callable[[Sequence[torch.Tensor]], Generator[Any, Any, tuple[torch.Tensor, ...]]]
"""A bound program: takes a step's local inputs; yields (`Collective`, tensor), is sent results, returns the outputs."""


class Expression(str):
    """Source text where an argument is expected, as rewritten calls use it."""


@dataclass(frozen=True)
class Collective:
    """One collective of a program: a method of `Communicator` and its arguments after the tensor and the axes.

    One that is only `started` gives a `samite.hal.driver.InFlight` in place of its result.
    """

    verb: str
    axes: tuple[str, ...]
    arguments: tuple[Any, ...]
    where: str = ""
    started: bool = False

    def __str__(self) -> str:
        words = (self.verb, *(str(a) for a in self.arguments), "over", ".".join(self.axes))
        return " ".join(words) + (f" ({self.where})" if self.where else "")


@dataclass(frozen=True)
class Statement:
    """What a line of the source came from, for errors: the op, and the user's line if known."""

    op: str = ""
    where: str = ""


@dataclass(frozen=True)
class Code:
    """A program's source and what its names stand for. Picklable; needs no compiler to load.

    `ops` are full names ("aten.add.Tensor"); `places` are axes: the name stands for the rank's index along them;
    `lengths` are factors: it stands for the valid length of the rank's shard.
    """

    name: str
    source: str
    statements: tuple[Statement, ...]
    ops: Mapping[str, str]
    constants: Mapping[str, Any]
    places: Mapping[str, tuple[str, ...]]
    lengths: Mapping[str, Factor]

    @property
    def filename(self) -> str:
        return f"<samite program {self.name}>"

    @cached_property
    def _compiled(self) -> CodeType:
        return compile(self.source, self.filename, "exec")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_compiled"}

    def bind(self, mesh: Mesh, rank: int, **names: Any) -> Main:
        """The program of one rank; `names` are further names that rewritten statements use.

        Raises UnsupportedOp if an op is not registered in this process.
        """
        namespace: dict[str, Any] = {"torch": torch, **self.constants, **names}
        namespace.update((name, overload(op)) for name, op in self.ops.items())
        namespace.update((name, mesh.peers(rank, axes).index(rank)) for name, axes in self.places.items())
        at = mesh.coordinates(rank)
        namespace.update((name, factor.span(mesh, at)[1]) for name, factor in self.lengths.items())
        exec(self._compiled, namespace)
        return namespace["main"]


def generate(
    module: fx.GraphModule, name: str, rewritten: Mapping[fx.Node, Callable[[Writer], str]] | None = None
) -> Code:
    """The source of a local program of aten ops, custom ops and the collectives of `samite.ir.collectives`.

    It takes the placeholders' values in order and returns the tuple of the graph's outputs. `rewritten` writes the
    right-hand side of single nodes in another way. Raises UnsupportedOp for a node that is neither a torch op, a
    constant nor `operator.getitem`.
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
        statements.append(Statement(str(node.target), _where(node)))
    if not any(isinstance(value, Collective) for value in writer.constants.values()):
        lines.append("    yield")  # never reached: makes it a generator all the same
        statements.append(Statement())
    return Code(
        name, "\n".join(lines) + "\n", tuple(statements), writer.ops, writer.constants, writer.places, writer.lengths
    )


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For every node the values that no later node reads, itself included if none ever does."""
    last: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        last[node] = [value for value in dict.fromkeys((node, *node.all_input_nodes)) if value not in seen]
        seen.update(last[node])
    return last


class Writer:
    """Spells nodes and their arguments, and keeps what the names that it makes up stand for."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.ops: dict[str, str] = {}
        self.constants: dict[str, Any] = {}
        self.places: dict[str, tuple[str, ...]] = {}
        self.lengths: dict[str, Factor] = {}
        self._module = module
        self._taken = {node.name for node in module.graph.nodes}

    def call(self, node: fx.Node) -> str:
        """The right-hand side of a node's statement."""
        if node.op == "get_attr":
            return self.constant(_attribute(self._module, str(node.target)), "literal")
        if node.target is operator.getitem:
            return f"{self.literal(node.args[0])}[{self.literal(node.args[1])}]"
        op: Any = node.target
        if not isinstance(op, torch._ops.OpOverload):
            raise UnsupportedOp(f"{op} is not a torch op", where=_where(node))
        if op.namespace == "samite" and op._opname in _SPECIAL:
            return _SPECIAL[op._opname](self, node)
        return self.apply(op, node.args, node.kwargs)

    def apply(self, op: torch._ops.OpOverload, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> str:
        """A call of `op`; arguments are as a node has them."""
        words = [self.literal(value) for value in arguments]
        words += [f"{key}={self.literal(value)}" for key, value in keywords.items()]
        name = self._free(str(op).replace(".", "_"))
        self.ops[name] = str(op)
        return f"{name}({', '.join(words)})"

    def literal(self, value: Any) -> str:
        """An argument: a value's name, a literal, or the name of a constant."""
        if isinstance(value, fx.Node):
            return value.name
        if isinstance(value, Expression):
            return value
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(self.literal(item) for item in value) + "]"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.layout, torch.memory_format)):
            return repr(value)
        return self.constant(value, "constant")

    def constant(self, value: Any, stem: str) -> str:
        name = self._free(f"{stem}_{len(self.constants)}")
        self.constants[name] = value
        return name

    def place(self, axes: tuple[str, ...]) -> str:
        """The name of this rank's index along `axes`."""
        name = self._free("index_" + "_".join(axes))
        self.places[name] = axes
        return name

    def length(self, factor: Factor) -> str:
        """The name of the valid length of this rank's shard of a factor."""
        name = self._free(f"valid_{factor.size}_{'_'.join(factor.axes)}")
        self.lengths[name] = factor
        return name

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        return name


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _where(node: fx.Node) -> str:
    source = node.meta.get("source")  # `samite.ir.graph.Source`, if the graph came from a module
    return source.line if source else ""


def _arguments(node: fx.Node) -> list[Any]:
    """A samite op's arguments by position: their schemas have neither defaults nor keyword-only arguments."""
    op: Any = node.target
    return [*node.args, *(node.kwargs[argument.name] for argument in op._schema.arguments[len(node.args) :])]


def _collective(writer: Writer, node: fx.Node) -> str:
    op: Any = node.target
    x, axes, *rest = _arguments(node)
    if op._opname == "permute":
        rest = [tuple(zip(rest[0][::2], rest[0][1::2], strict=True))]
    elif op._opname != "all_reduce":
        rest.pop()  # `parts` is what the mesh says; the communicator knows it
    site = Collective(op._opname, split_axes(axes), tuple(rest), _where(node))
    return f"yield {writer.constant(site, 'collective')}, {writer.literal(x)}"


def _start(writer: Writer, node: fx.Node) -> str:
    x, verb, axes, dims, pairs, reduce_type, *_ = _arguments(node)
    arguments = arguments_of(verb, dims, list(zip(pairs[::2], pairs[1::2], strict=True)), reduce_type)
    arguments = tuple(tuple(value) if isinstance(value, list) else value for value in arguments)
    site = Collective(verb, split_axes(axes), arguments, _where(node), started=True)
    return f"yield {writer.constant(site, 'collective')}, {writer.literal(x)}"


def _wait(writer: Writer, node: fx.Node) -> str:
    (under_way,) = _arguments(node)
    return f"{writer.literal(under_way)}.wait()"


def _axis_index(writer: Writer, node: fx.Node) -> str:
    (axes,) = _arguments(node)
    return f"torch.tensor({writer.place(split_axes(axes))})"


def _valid_length(writer: Writer, node: fx.Node) -> str:
    axes, size, _ = _arguments(node)
    return f"torch.tensor({writer.length(Factor(size, split_axes(axes)))})"


def _shard(writer: Writer, node: fx.Node) -> str:
    x, axes, dim, parts = _arguments(node)
    x, index = writer.literal(x), writer.place(split_axes(axes))
    # Contiguous, because some kernels (native_layer_norm_backward) misread strided operands.
    return f"{x}.narrow({dim}, {index} * ({x}.shape[{dim}] // {parts}), {x}.shape[{dim}] // {parts}).contiguous()"


_SPECIAL: dict[str, Callable[[Writer, fx.Node], str]] = {
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"), _collective),
    "start": _start,
    "wait": _wait,
    "axis_index": _axis_index,
    "valid_length": _valid_length,
    "shard": _shard,
}
