"""Reading a function of an MLIR module into a `Graph`, in one walk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samite.errors import VerifyError
from samite.ir.attributes import decode
from samite.ir.context import TensorType, tensor_type
from samite.ir.graph import Argument, Constant, Graph, ListOf, Node, Slot, intern_op

__all__ = ["ARGUMENT_ATTRIBUTES", "LAYOUTS", "MAIN", "REGION_LAYOUTS", "function", "scan_function"]


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
    found = function(module, name)
    block = found.regions[0].blocks[0]
    graph = _Scan(name, block, _attributes(found, "arg_attrs", len(block.arguments))).graph
    results = _attributes(found, "res_attrs", len(graph.returns))
    graph.aliases = tuple(named.get("samite.alias", -1) for named in results)
    graph.return_layouts = tuple(named.get("dist.layout", "") for named in results)
    return graph


_PACKED = ("!torch.list", "!torch.tuple")
_UNPACKS = ("torch.prim.ListUnpack", "torch.prim.TupleUnpack")
_BOOL_CASTS = frozenset(("torch.aten.Int.bool", "torch.aten.Float.bool"))
"""How the torch dialect spells a bool where a scalar is expected: the literal stays a bool."""


class _Scan:
    def __init__(self, name: str, block: Any, attributes: Sequence[Mapping[str, str]]) -> None:
        """`attributes` are those of the block's arguments."""
        self.numbers: dict[Any, int] = {}
        self.folded: dict[Any, Constant | tuple[str, tuple[Any, ...]]] = {}
        types: list[TensorType] = []
        self.types = types
        for argument in block.arguments:
            self._number(argument)
        arguments = tuple(
            Argument(type, *(named.get(key, "") for key in ARGUMENT_ATTRIBUTES))
            for type, named in zip(types, attributes, strict=True)
        )
        self.graph = Graph(name, arguments, [], (), (), types)
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
        elif name in ("torch.prim.ListConstruct", "torch.prim.TupleConstruct"):
            result = operation.results[0]
            self.folded[result] = (str(result.type), tuple(operation.operands))
        elif name in _UNPACKS:
            pass  # what it gives are the results of the op that made the list
        elif name == "func.return":
            self.graph.returns = tuple(self._returned(v) for v in operation.operands)
        elif name == "dist.yield":
            self.graph.returns = tuple(self._returned(v) for v in self._elements(operation.operands[0]))
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
        regions = self._regions(operation) if name.startswith("dist.") and len(operation.regions) else ()
        given = operation.operands
        if regions:
            *first, inputs = given
            given = (*first, *self._elements(inputs))
        form = tuple(item(v) for v in given)
        attributes: tuple[tuple[str, Any], ...] = ()
        if name.startswith("dist."):
            keys = (key for key in operation.attributes if key not in (LAYOUTS, REGION_LAYOUTS))
            attributes = tuple((key, decode(operation.attributes[key])) for key in keys)
        elif name == "torch.vtensor.literal":
            attributes = (("value", str(operation.attributes["value"])),)
        layouts = decode(operation.attributes[LAYOUTS]) if LAYOUTS in operation.attributes else ()
        results = tuple(self._number(r) for r in _unpacked(operation))
        types = tuple(self.types[o] for o in operands), tuple(self.types[r] for r in results)
        op = intern_op(name.removeprefix("torch."), form, *types, attributes, regions)
        self.graph.nodes.append(Node(op, tuple(operands), results, operation.location, layouts))

    def _elements(self, value: Any) -> tuple[Any, ...]:
        """What a tuple was made of."""
        made = self.folded.get(value)
        if not isinstance(made, tuple):
            raise VerifyError(f"a tuple must be made where it is used, have {value.type}", where=str(value.owner)[:80])
        return made[1]

    def _regions(self, operation: Any) -> tuple[Graph, ...]:
        blocks = [region.blocks[0] for region in operation.regions]
        attributes = operation.attributes
        unknown = (((), ()),) * len(blocks)
        layouts: Any = decode(attributes[REGION_LAYOUTS]) if REGION_LAYOUTS in attributes else unknown
        found: list[Graph] = []
        for block, (arguments, returns) in zip(blocks, layouts, strict=True):
            named = [{"dist.layout": text} for text in arguments] or [{} for _ in block.arguments]
            region = _Scan(MAIN, block, named).graph
            region.aliases = (-1,) * len(region.returns)
            region.return_layouts = returns or ("",) * len(region.returns)
            found.append(region)
        return tuple(found)

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
    """An op's results; of an op that returns a list or a tuple, the results of the op that takes it apart."""
    results = operation.results
    if len(results) != 1 or tensor_type(results[0].type) or not str(results[0].type).startswith(_PACKED):
        return results
    users = [use.owner for use in results[0].uses]
    if len(users) > 1 or any(user.name not in _UNPACKS for user in users):
        raise VerifyError(f"the list that {operation.name} returns must be unpacked, and once")
    return users[0].results if users else ()


MAIN = "main"
LAYOUTS, REGION_LAYOUTS = "dist.layouts", "dist.region_layouts"
"""Attributes of a placed op: its results' layouts, and for each of its regions those of its arguments and returns."""
ARGUMENT_ATTRIBUTES = ("samite.name", "dist.layout", "samite.owner")
"""Where the IR keeps the fields of `Argument` after its type."""


def _attributes(function: Any, key: str, count: int) -> list[dict[str, Any]]:
    if key not in function.attributes:
        return [{} for _ in range(count)]
    return [{named.name: named.attr.value for named in attributes} for attributes in function.attributes[key]]
