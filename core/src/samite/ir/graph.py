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

from samite.errors import UnsupportedOp, VerifyError
from samite.ir.attributes import decode
from samite.ir.context import TensorType, tensor_type

__all__ = [
    "ARGUMENT_ATTRIBUTES",
    "Argument",
    "Constant",
    "Form",
    "Graph",
    "ListOf",
    "Node",
    "Op",
    "Slot",
    "Source",
    "function",
    "intern_op",
    "overload",
    "read_source",
    "scan_function",
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
    """Where an op comes from: the user's line, the phase of the step, and the number of the forward op it serves."""

    line: str = ""
    phase: str = ""
    op: int = -1


@cache
def overload(name: str) -> torch._ops.OpOverload:
    """The torch op of a `Node` name: "aten.mm", "aten.add.Tensor", "samite.sdpa". UnsupportedOp if there is none."""
    namespace, packet, *rest = name.split(".")
    if namespace == "samite":  # defined by importing these, which a worker may not have done
        for definition in ("adam", "collectives", "random", "sdpa"):
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

    Interned: two nodes that agree in all of it share one `Op`, which makes it a cheap key of caches.
    """

    name: str
    form: Form
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    attributes: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def literals(self) -> Mapping[str, Any]:
        """Arguments that are no tensors, by the schema's names; of ops without a schema, the attributes."""
        if self.attributes:
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
) -> Op:
    key = (name, form, operands, results, attributes)
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

    phase, number, line = "", -1, ""
    if isinstance(location, ir.NameLoc):
        phase, _, op = location.name_str.partition(":")
        number = int(op or -1)
        location = location.child_loc
    if isinstance(location, ir.FileLineColLoc):
        line = f"{location.filename.value if hasattr(location.filename, 'value') else location.filename}"
        line += f":{location.start_line}"
    return Source(line, phase, number)


def _literal(operation: Any) -> Constant:
    from torch_mlir import ir

    kind = operation.name.removeprefix("torch.constant.")
    if kind == "none":
        return Constant.of(None)
    value = decode(operation.attributes["value"])
    if kind == "bool":
        value = bool(value)
    if kind == "float":
        value = ir.FloatAttr(operation.attributes["value"]).value
    return Constant(kind, repr(value), value)


def function(module: Any, name: str = "main") -> Any:
    """The `func.func` of this name. It must not outlive `module`."""
    for operation in module.body.operations:
        if operation.operation.attributes["sym_name"].value == name:
            return operation.operation
    raise VerifyError(f"the module has no function {name!r}")


def scan_function(module: Any, name: str = "main") -> Graph:
    """Read a function of one block of an MLIR module. Raises VerifyError where it holds what no pass understands."""
    return _Scan(function(module, name)).graph


_BOOL_CASTS = frozenset(("torch.aten.Int.bool", "torch.aten.Float.bool"))
"""How the torch dialect spells a bool where a scalar is expected: the literal stays a bool."""


class _Scan:
    def __init__(self, function: Any) -> None:
        self.numbers: dict[Any, int] = {}
        self.folded: dict[Any, Constant | tuple[str, tuple[Any, ...]]] = {}
        types: list[TensorType] = []
        self.types, self.function = types, function
        block = function.regions[0].blocks[0]
        for argument in block.arguments:
            self._number(argument)
        arguments = tuple(
            Argument(type, *(named.get(key, "") for key in ARGUMENT_ATTRIBUTES))
            for type, named in zip(types, _attributes(function, "arg_attrs", len(types)), strict=True)
        )
        self.graph = Graph(function.attributes["sym_name"].value, arguments, [], (), (), types)
        for view in block.operations:
            self._visit(view.operation)

    def _number(self, value: Any) -> int:
        type = tensor_type(value.type)
        if type is None:
            raise VerifyError(f"a value of type {value.type} where a tensor is needed", where=str(value.owner)[:80])
        number = self.numbers[value] = len(self.types)
        self.types.append(type)
        return number

    def _visit(self, operation: Any) -> None:
        name: str = operation.name
        if name.startswith("torch.constant."):
            self.folded[operation.results[0]] = _literal(operation)
        elif name in _BOOL_CASTS:
            cast = self.folded[operation.operands[0]]
            assert isinstance(cast, Constant)
            self.folded[operation.results[0]] = Constant(name.removeprefix("torch.aten."), cast.text, cast.value)
        elif name == "torch.prim.ListConstruct":
            result = operation.results[0]
            self.folded[result] = (str(result.type), tuple(operation.operands))
        elif name == "torch.prim.ListUnpack":
            pass  # what it gives are the results of the op that made the list
        elif name == "func.return":
            self.graph.returns = tuple(self._returned(v) for v in operation.operands)
            results = _attributes(self.function, "res_attrs", len(self.graph.returns))
            self.graph.aliases = tuple(named.get("samite.alias", -1) for named in results)
            self.graph.return_layouts = tuple(named.get("dist.layout", "") for named in results)
        else:
            self._node(operation, name)

    def _node(self, operation: Any, name: str) -> None:
        operands: list[int] = []

        def item(value: Any) -> Slot | Constant | ListOf:
            known = self.folded.get(value)
            if known is None:
                operands.append(self.numbers[value])
                return Slot(len(operands) - 1)
            return known if isinstance(known, Constant) else ListOf(known[0], tuple(map(item, known[1])))  # type: ignore[arg-type]

        if name == "torch.operator":
            name = operation.attributes["name"].value
        form = tuple(item(v) for v in operation.operands)
        attributes: tuple[tuple[str, Any], ...] = ()
        if name.startswith("dist."):
            keys = (key for key in operation.attributes if key != "dist.layouts")
            attributes = tuple((key, decode(operation.attributes[key])) for key in keys)
        elif name == "torch.vtensor.literal":
            attributes = (("value", str(operation.attributes["value"])),)
        layouts = decode(operation.attributes["dist.layouts"]) if "dist.layouts" in operation.attributes else ()
        results = tuple(self._number(r) for r in _unpacked(operation))
        types = tuple(self.types[o] for o in operands), tuple(self.types[r] for r in results)
        op = intern_op(name.removeprefix("torch."), form, *types, attributes)
        self.graph.nodes.append(Node(op, tuple(operands), results, operation.location, layouts))

    def _returned(self, value: Any) -> int:
        if value in self.numbers:
            return self.numbers[value]
        if self.folded.get(value) != Constant.of(None):
            raise VerifyError(f"a value of type {value.type} is returned where a tensor is needed")
        number = self._number(value)  # a result that is left out
        op = intern_op("constant.none", (), (), (self.types[number],))
        self.graph.nodes.append(Node(op, (), (number,), value.owner.location))
        return number


def _unpacked(operation: Any) -> Sequence[Any]:
    """An op's results; of an op that returns a list, the results of the op that takes it apart."""
    results = operation.results
    if len(results) != 1 or tensor_type(results[0].type) or not str(results[0].type).startswith("!torch.list"):
        return results
    users = [use.owner for use in results[0].uses]
    if len(users) > 1 or any(user.name != "torch.prim.ListUnpack" for user in users):
        raise VerifyError(f"the list that {operation.name} returns must be unpacked, and once")
    return users[0].results if users else ()


ARGUMENT_ATTRIBUTES = ("samite.name", "dist.layout", "samite.owner")
"""Where the IR keeps the fields of `Argument` after its type."""


def _attributes(function: Any, key: str, count: int) -> list[dict[str, Any]]:
    if key not in function.attributes:
        return [{} for _ in range(count)]
    return [{named.name: named.attr.value for named in attributes} for attributes in function.attributes[key]]
