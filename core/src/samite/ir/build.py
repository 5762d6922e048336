"""Writing functions: every structural pass reads a `Graph` and builds a new function with a `Builder`.

    with Builder(module, "main", arguments) as build:
        for node in graph.nodes:
            values[...] = build.op(node.op, [values[o] for o in node.operands], types, node.location)
        build.finish([values[r] for r in graph.returns])

Nothing is edited in place, so no pass can hold an operation that was erased.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from samite.ir.attributes import encode
from samite.ir.context import TensorType, context, mlir_type
from samite.ir.graph import Argument, Constant, Form, Graph, ListOf, Op, Slot
from samite.ir.module import Module
from samite.ir.scan import ARGUMENT_ATTRIBUTES

__all__ = ["Builder", "Value", "rewrite"]

Value = Any  # torch_mlir.ir.Value; only builders touch them


class Builder:
    """Appends ops to a new function. Constants are written once, at their first use."""

    def __init__(self, module: Module, name: str, arguments: Sequence[Argument]) -> None:
        from torch_mlir import ir
        from torch_mlir.dialects import func

        self._ir, self._func = ir, func
        self._context = context()
        self._unknown = ir.Location.unknown(self._context)
        self._constants: dict[Any, Value] = {}
        with self._context, self._unknown, ir.InsertionPoint(module.mlir.body):
            types = [mlir_type(a.type) for a in arguments]
            self._function = func.FuncOp(name, (types, []))
            self._types = types
            self._block = self._function.add_entry_block()
            self._function.attributes["arg_attrs"] = ir.ArrayAttr.get([self._argument(a) for a in arguments])
        self.arguments: tuple[Value, ...] = tuple(self._block.arguments)

    def __enter__(self) -> Builder:
        self._context.__enter__()
        self._unknown.__enter__()
        self._point = self._ir.InsertionPoint(self._block)
        self._point.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for entered in (self._point, self._unknown, self._context):
            entered.__exit__(*error)

    def _argument(self, argument: Argument) -> Any:
        named = zip(ARGUMENT_ATTRIBUTES, argument[1:], strict=True)
        return self._ir.DictAttr.get({key: encode(text) for key, text in named if text})

    def op(
        self,
        op: Op,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        location: Any = None,
        layouts: Sequence[str] = (),
    ) -> tuple[Value, ...]:
        """The same op over other operands, with other result types."""
        if op.name.startswith("dist."):
            return self.dist(op.name, operands, types, dict(op.attributes), location, layouts)
        if op.name == "vtensor.literal":
            return self._tensor_literal(op, types, location, layouts)
        return self.torch(op.name, op.form, operands, types, location, layouts)

    def torch(
        self,
        name: str,
        form: Form,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        location: Any = None,
        layouts: Sequence[str] = (),
    ) -> tuple[Value, ...]:
        """A torch op: `form` says which arguments are operands and which are literals."""
        location = location or self._unknown
        arguments = [self._item(item, operands) for item in form]
        results = [mlir_type(t) for t in types]
        full, attributes = f"torch.{name}", {}
        unpacked = name in _LIST_RESULTS
        made = [self._ir.Type.parse("!torch.list<vtensor>")] if unpacked else results
        if not self._registered(full):
            full, attributes = "torch.operator", {"name": self._ir.StringAttr.get(f"torch.{name}")}
        if layouts and not unpacked:
            attributes["dist.layouts"] = encode(tuple(layouts))
        operation = self._ir.Operation.create(
            full, results=made, operands=arguments, attributes=attributes, loc=location
        )
        if unpacked:
            if layouts:
                operation.attributes["dist.layouts"] = encode(tuple(layouts))
            operation = self._ir.Operation.create(
                "torch.prim.ListUnpack", results=results, operands=[operation.results[0]], loc=location
            )
        return tuple(operation.results)

    def dist(
        self,
        name: str,
        operands: Sequence[Value],
        types: Sequence[TensorType],
        attributes: Mapping[str, Any],
        location: Any = None,
        layouts: Sequence[str] = (),
    ) -> tuple[Value, ...]:
        """An op of the dist dialect; attributes are plain strings, ints and tuples of them."""
        made = {key: encode(value) for key, value in attributes.items()}
        if layouts:
            made["dist.layouts"] = encode(tuple(layouts))
        operation = self._ir.Operation.create(
            name,
            results=[mlir_type(t) for t in types],
            operands=list(operands),
            attributes=made,
            loc=location or self._unknown,
        )
        return tuple(operation.results)

    def _tensor_literal(
        self, op: Op, types: Sequence[TensorType], location: Any, layouts: Sequence[str]
    ) -> tuple[Value, ...]:
        attributes = {"value": self._ir.Attribute.parse(op.literals["value"])}
        if layouts:
            attributes["dist.layouts"] = encode(tuple(layouts))
        results = [mlir_type(t) for t in types]
        operation = self._ir.Operation.create(
            "torch.vtensor.literal", results=results, attributes=attributes, loc=location or self._unknown
        )
        return tuple(operation.results)

    def inline(self, graph: Graph, operands: Sequence[Value], location: Any = None) -> tuple[Value, ...]:
        """The body of another function over these operands; every op takes `location`."""
        values: list[Value] = list(operands)
        for node in graph.nodes:
            types = [graph.types[r] for r in node.results]
            values.extend(self.op(node.op, [values[o] for o in node.operands], types, location))
        return tuple(values[r] for r in graph.returns)

    def inline_all(self, graph: Graph, keep: Sequence[bool] | None = None) -> list[Value]:
        """A function's own body over this function's arguments, locations kept; of its nodes those that `keep` has."""
        values: dict[int, Value] = dict(enumerate(self.arguments))
        for index, node in enumerate(graph.nodes):
            if keep is None or keep[index]:
                types = [graph.types[r] for r in node.results]
                made = self.op(node.op, [values[o] for o in node.operands], types, node.location, node.layouts)
                values.update(zip(node.results, made, strict=True))
        return [values[r] for r in graph.returns]

    def finish(self, results: Sequence[Value], aliases: Sequence[int] = (), layouts: Sequence[str] = ()) -> None:
        """Return `results`; the function's type follows from them. `aliases` and `layouts` as in `Graph`."""
        self._func.ReturnOp(list(results), loc=self._unknown)
        named: list[dict[str, Any]] = [{} for _ in results]
        for attributes, alias in zip(named, aliases, strict=False):
            if alias >= 0:
                attributes["samite.alias"] = encode(alias)
        for attributes, layout in zip(named, layouts, strict=False):
            if layout:
                attributes["dist.layout"] = encode(layout)
        if any(named):
            self._function.attributes["res_attrs"] = self._ir.ArrayAttr.get([self._ir.DictAttr.get(n) for n in named])
        kind = self._ir.FunctionType.get(self._types, [r.type for r in results])
        self._function.attributes["function_type"] = self._ir.TypeAttr.get(kind)

    def _registered(self, name: str) -> bool:
        known = _registered_names.get(name)
        if known is None:
            known = _registered_names[name] = self._context.is_registered_operation(name)
        return known

    def _item(self, item: Slot | Constant | ListOf, operands: Sequence[Value]) -> Value:
        if isinstance(item, Slot):
            return operands[item.position]
        value = self._constants.get(item)
        if value is not None:
            return value
        if isinstance(item, Constant):
            value = self._constants[item] = self._literal(item)
            return value
        value = self._ir.Operation.create(
            "torch.prim.ListConstruct",
            results=[self._ir.Type.parse(item.type)],
            operands=[self._item(i, operands) for i in item.items],
            loc=self._unknown,
        ).results[0]
        if not any(isinstance(i, Slot) for i in item.items):
            self._constants[item] = value
        return value

    def _literal(self, constant: Constant) -> Value:
        ir, value = self._ir, constant.value
        if constant.kind in ("Int.bool", "Float.bool"):
            return ir.Operation.create(
                f"torch.aten.{constant.kind}",
                results=[ir.Type.parse(f"!torch.{constant.kind.removesuffix('.bool').lower()}")],
                operands=[self._item(Constant.of(value), ())],
                loc=self._unknown,
            ).results[0]
        attributes: dict[str, Any] = {}
        if constant.kind == "bool":
            attributes["value"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(1), int(value))
        elif constant.kind == "int":
            attributes["value"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
        elif constant.kind == "float":
            attributes["value"] = ir.FloatAttr.get(ir.F64Type.get(), value)
        elif constant.kind in ("str", "device"):
            attributes["value"] = ir.StringAttr.get(str(value))
        kind = "Device" if constant.kind == "device" else constant.kind
        return ir.Operation.create(
            f"torch.constant.{constant.kind}",
            results=[ir.Type.parse(f"!torch.{kind}")],
            attributes=attributes,
            loc=self._unknown,
        ).results[0]


_registered_names: dict[str, bool] = {}
_LIST_RESULTS = frozenset(
    ("aten.split.Tensor", "aten.split_with_sizes", "aten.chunk", "aten.unbind.int", "aten.tensor_split.sections")
)


def rewrite(
    module: Module,
    body: Callable[[Graph, Builder], Sequence[Value]],
    arguments: Sequence[Argument] | None = None,
    return_layouts: Sequence[str] | None = None,
) -> Module:
    """The one wrapper over rewriting: `main` of `module` is read, `body` builds its successor in a new module.

    `arguments` and `return_layouts` are the new function's, where they differ from the old ones. Aliases stay.
    """
    graph = module.graph
    made = Module.empty(module.mesh_attribute)
    with Builder(made, graph.name, graph.arguments if arguments is None else arguments) as build:
        layouts = graph.return_layouts if return_layouts is None else return_layouts
        build.finish(body(graph, build), graph.aliases, layouts)
    return made
