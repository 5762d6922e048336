"""Reading a function of an MLIR module into a `Graph`, in one walk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samite.errors import VerifyError
from samite.ir.attributes import decode
from samite.ir.context import TensorType, tensor_type
from samite.ir.graph import Argument, Constant, Graph, ListOf, Node, Slot, intern_op

__all__ = ["ARGUMENT_ATTRIBUTES", "function", "scan_function"]


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
