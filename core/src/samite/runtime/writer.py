"""Spelling nodes of a local program as Python: the right-hand sides of `samite.runtime.codegen`."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from samite.errors import UnsupportedOp
from samite.ir.asynchronous import arguments_of
from samite.ir.collectives import chosen, split_axes
from samite.ir.regions import call_of, is_control_flow

__all__ = ["Collective", "Expression", "Writer", "line_of"]


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


class Writer:
    """Spells nodes and their arguments, and keeps what the names that it makes up stand for."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.ops: dict[str, str] = {}
        self.constants: dict[str, Any] = {}
        self.places: dict[str, tuple[str, ...]] = {}
        self.lengths: dict[str, tuple[str, ...]] = {}
        self._regions: dict[Any, str] = {}
        self._module = module
        self._taken = {node.name for node in module.graph.nodes}

    def inside(self, region: fx.GraphModule) -> Writer:
        """The writer of a region, which shares what names stand for."""
        inner = copy.copy(self)
        inner._module = region
        inner._taken = {node.name for node in region.graph.nodes}
        return inner

    def region(self, region: fx.GraphModule) -> str:
        """The name of a region's function."""
        if region not in self._regions:
            self._regions[region] = f"region_{len(self._regions)}"
        return self._regions[region]

    def call(self, node: fx.Node) -> str:
        """The right-hand side of a node's statement."""
        if node.op == "get_attr":
            return self.constant(_attribute(self._module, str(node.target)), "literal")
        if node.target is operator.getitem:
            return f"{self.literal(node.args[0])}[{self.literal(node.args[1])}]"
        op: Any = node.target
        if is_control_flow(op):
            return _control(self, node)
        if not isinstance(op, torch._ops.OpOverload):
            raise UnsupportedOp(f"{op} is not a torch op", where=line_of(node))
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

    def length(self, axes: tuple[str, ...]) -> str:
        """The name of the function that gives the valid length of this rank's shard of a size."""
        name = self._free("valid_" + "_".join(axes))
        self.lengths[name] = axes
        return name

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        return name


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def line_of(node: fx.Node) -> str:
    source = node.meta.get("source")  # `samite.ir.graph.Source`, if the graph came from a module
    return source.line if source else ""


def _arguments(node: fx.Node) -> list[Any]:
    """A samite op's arguments by position: their schemas have no keyword-only arguments."""
    op: Any = node.target
    rest = op._schema.arguments[len(node.args) :]
    return [*node.args, *(node.kwargs.get(argument.name, argument.default_value) for argument in rest)]


def _collective(writer: Writer, node: fx.Node) -> str:
    op: Any = node.target
    x, axes, *rest = _arguments(node)
    if op._opname == "permute":
        rest = [tuple(zip(rest[0][::2], rest[0][1::2], strict=True))]
    elif op._opname == "all_reduce":
        rest = [rest[0], *chosen(*rest[1:])]
    else:
        rest.pop()  # `parts` is what the mesh says; the communicator knows it
    site = Collective(op._opname, split_axes(axes), tuple(rest), line_of(node))
    return f"yield {writer.constant(site, 'collective')}, {writer.literal(x)}"


def _start(writer: Writer, node: fx.Node) -> str:
    x, verb, axes, dims, pairs, reduce_type, _, _, _, _, *how = _arguments(node)
    arguments = arguments_of(verb, dims, list(zip(pairs[::2], pairs[1::2], strict=True)), reduce_type, *how)
    arguments = tuple(tuple(value) if isinstance(value, list) else value for value in arguments)
    site = Collective(verb, split_axes(axes), arguments, line_of(node), started=True)
    return f"yield {writer.constant(site, 'collective')}, {writer.literal(x)}"


def _wait(writer: Writer, node: fx.Node) -> str:
    (under_way,) = _arguments(node)
    return f"{writer.literal(under_way)}.wait()"


def _control(writer: Writer, node: fx.Node) -> str:
    op: Any = node.target
    regions = iter(call_of(node).functions)
    words = [writer.region(next(regions)) if _is_function(value) else writer.literal(value) for value in node.args]
    if op.name() == "map_impl":
        words.insert(1, "[]")
    return f"yield from control.{_CONTROL[op.name()]}({', '.join(words)})"


def _is_function(value: object) -> bool:
    return isinstance(value, fx.Node) and value.op == "get_attr" and not value.meta["types"]


_CONTROL = {"cond": "cond", "while_loop": "while_loop", "scan": "scan", "map_impl": "scan"}


def _axis_index(writer: Writer, node: fx.Node) -> str:
    (axes,) = _arguments(node)
    return f"torch.tensor({writer.place(split_axes(axes))})"


def _valid_length(writer: Writer, node: fx.Node) -> str:
    axes, size, _ = _arguments(node)
    return f"torch.tensor({writer.length(split_axes(axes))}({writer.literal(size)}))"


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
