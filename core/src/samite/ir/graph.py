"""A function of a module as plain data, which is what passes read. Nothing here holds an operation.

Values are numbered: arguments first, then results in program order. Constants and list constructions are folded into
the ops that use them, so a `Node` is a torch op as its schema writes it: tensor operands by number, the rest by value.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch

from samite.errors import UnsupportedOp
from samite.ir.context import TensorType

__all__ = [
    "Argument",
    "Constant",
    "Form",
    "Graph",
    "ListOf",
    "Node",
    "Op",
    "Slot",
    "Source",
    "intern_op",
    "joint_location",
    "overload",
    "read_source",
]


class Slot(NamedTuple):
    """The tensor operand with this index."""

    position: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal. `text` tells 1 from True and 1.0, and 0.0 from -0.0, where Python's equality does not.

    `kind` is the Python type's name; "Int.bool" and "Float.bool" are a bool where the dialect takes numbers only.
    """

    kind: str
    text: str
    value: Any = field(compare=False)

    @staticmethod
    def of(value: Any) -> Constant:
        return Constant("none" if value is None else type(value).__name__, repr(value), value)


class ListOf(NamedTuple):
    """A list argument; `type` is its MLIR type ("!torch.list<int>")."""

    type: str
    items: tuple[Slot | Constant, ...]


Form = tuple["Slot | Constant | ListOf", ...]


class Source(NamedTuple):
    """Where an op comes from: the user's line, the phase of the step, and the number of the forward op it serves.

    `others` are further lines, of an op that stands for several.
    """

    line: str = ""
    phase: str = ""
    op: int = -1
    others: tuple[str, ...] = ()


@cache
def overload(name: str) -> torch._ops.OpOverload:
    """The torch op of a `Node` name: "aten.mm", "aten.add.Tensor", "samite.sdpa". UnsupportedOp if there is none."""
    namespace, packet, *rest = name.split(".")
    if namespace == "samite":  # defined by importing these, which a worker may not have done
        for definition in ("adam", "asynchronous", "collectives", "ctc", "random", "sdpa", "sgd"):
            importlib.import_module(f"samite.ir.{definition}")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), rest[0] if rest else "default")
    except AttributeError as error:
        raise UnsupportedOp(
            f"torch knows no op {name}", help="import what defines it; workers import what `worker_imports` names"
        ) from error


@dataclass(frozen=True, eq=False)
class Op:
    """All that a rule may depend on, once per distinct call: op, literals, operand and result types.

    Interned: two nodes that agree in all of it share one `Op`, which makes it a cheap key of caches. Ops with `regions`
    (`samite.ir.regions`) are not.
    """

    name: str
    form: Form
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    regions: tuple[Graph, ...] = ()

    @cached_property
    def literals(self) -> Mapping[str, Any]:
        """Arguments that are no tensors, by the schema's names; of ops without a schema, the attributes."""
        if self.attributes or self.name.startswith("dist."):
            return dict(self.attributes)
        schema = overload(self.name)._schema.arguments
        found: dict[str, Any] = {}
        for argument, item in zip(schema, self.form, strict=True):
            if isinstance(item, Constant):
                found[argument.name] = item.value
            elif isinstance(item, ListOf) and not any(isinstance(i, Slot) for i in item.items):
                found[argument.name] = [i.value for i in item.items if isinstance(i, Constant)]
        return found

    def __str__(self) -> str:
        return self.name.removeprefix("aten.")


_interned: dict[tuple[Any, ...], Op] = {}


def intern_op(
    name: str,
    form: Form,
    operands: tuple[TensorType, ...],
    results: tuple[TensorType, ...],
    attributes: tuple[tuple[str, Any], ...] = (),
    regions: tuple[Graph, ...] = (),
) -> Op:
    key = (name, form, operands, results, attributes)
    if regions:
        return Op(*key, regions)
    op = _interned.get(key)
    if op is None:
        op = _interned[key] = Op(*key)
    return op


class Argument(NamedTuple):
    """An argument of a function; all but its type are attributes in the IR.

    `layout` is the text of its layout, once it has one; `owner` names the parameter that a gradient or an optimizer's
    state belongs to, and with which it is laid out.
    """

    type: TensorType
    name: str = ""
    layout: str = ""
    owner: str = ""


@dataclass(slots=True)
class Node:
    """One op of a function. `layouts` are the texts of its results' layouts, once `place` has run."""

    op: Op
    operands: tuple[int, ...]
    results: tuple[int, ...]
    location: Any
    layouts: tuple[str, ...] = ()

    @property
    def source(self) -> Source:
        return read_source(self.location)


@dataclass(slots=True)
class Graph:
    """A function. `types` has the type of every numbered value; `aliases` the argument that each return replaces, or -1
    if none; `return_layouts` the texts of the returns' layouts, once `place` has run."""

    name: str
    arguments: tuple[Argument, ...]
    nodes: list[Node]
    returns: tuple[int, ...]
    aliases: tuple[int, ...]
    types: list[TensorType]
    return_layouts: tuple[str, ...] = ()

    def users(self) -> list[list[int]]:
        """For every value the indices of the nodes that use it; the function's return is node `len(nodes)`."""
        found: list[list[int]] = [[] for _ in self.types]
        for index, node in enumerate(self.nodes):
            for value in node.operands:
                found[value].append(index)
        for value in self.returns:
            found[value].append(len(self.nodes))
        return found


@cache
def read_source(location: Any) -> Source:
    from torch_mlir import ir

    phase, number = "", -1
    if isinstance(location, ir.NameLoc):
        phase, _, op = location.name_str.partition(":")
        number = int(op or -1)
        location = location.child_loc
    if isinstance(location, ir.FusedLoc):
        *others, line = dict.fromkeys(map(_line, location.locations))
        return Source(line, phase, number, tuple(others))
    return Source(_line(location), phase, number)


def _line(location: Any) -> str:
    from torch_mlir import ir

    if not isinstance(location, ir.FileLineColLoc):
        return ""
    name = location.filename
    return f"{name.value if hasattr(name, 'value') else name}:{location.start_line}"


def joint_location(locations: Sequence[Any]) -> Any:
    """Of an op that stands for several: the phase and forward op of the last of them, and the lines of all."""
    from torch_mlir import ir

    lines = [at.child_loc if isinstance(at, ir.NameLoc) else at for at in locations]
    last = locations[-1]
    with last.context:
        own = lines.pop()  # last, whatever the others are
        joint = ir.Location.fused([*(at for at in lines if at != own), own])
        return ir.Location.name(last.name_str, joint) if isinstance(last, ir.NameLoc) else joint
