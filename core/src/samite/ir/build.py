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
from samite.ir.constants import Constants, Value
from samite.ir.context import TensorType, context, mlir_type, tuple_type
from samite.ir.graph import Argument, Form, Graph, Op
from samite.ir.module import Module
from samite.ir.regions import with_regions
from samite.ir.scan import ARGUMENT_ATTRIBUTES, LAYOUTS, MAIN, REGION_LAYOUTS

__all__ = ["Builder", "Value", "module_of", "rewrite"]


class Builder:
    """Appends ops to a new function. Constants are written once, at their first use."""

    def __init__(self, module: Module, name: str, arguments: Sequence[Argument]) -> None:
        from torch_mlir import ir
        from torch_mlir.dialects import func

        self._ir, self._func = ir, func
        self._context = context()
        self._unknown = ir.Location.unknown(self._context)
        self._constants = Constants()
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
            return self.dist(op.name, operands, types, dict(op.attributes), location, layouts, op.regions)
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
        arguments = [self._constants.value(item, operands) for item in form]
        results = [mlir_type(t) for t in types]
        full, attributes = f"torch.{name}", {}
        unpacked = name in _LIST_RESULTS
        made = [self._ir.Type.parse("!torch.list<vtensor>")] if unpacked else results
        if not self._registered(full):
            full, attributes = "torch.operator", {"name": self._ir.StringAttr.get(f"torch.{name}")}
        if layouts and not unpacked:
            attributes[LAYOUTS] = encode(tuple(layouts))
        operation = self._ir.Operation.create(
            full, results=made, operands=arguments, attributes=attributes, loc=location
        )
        if unpacked:
            if layouts:
                operation.attributes[LAYOUTS] = encode(tuple(layouts))
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
        regions: Sequence[Graph] = (),
    ) -> tuple[Value, ...]:
        """An op of the dist dialect; attributes are plain strings, ints and tuples of them."""
        made = {key: encode(value) for key, value in attributes.items()}
        if layouts:
            made[LAYOUTS] = encode(tuple(layouts))
        if any(text for region in regions for text in region.return_layouts):
            known = ((tuple(a.layout for a in region.arguments), region.return_layouts) for region in regions)
            made[REGION_LAYOUTS] = encode(tuple(known))
        results, given = [mlir_type(t) for t in types], list(operands)
        if regions:
            first = 1 if name == "dist.cond" else 0
            given = [*given[:first], self._packed(given[first:])]
        operation = self._ir.Operation.create(
            name,
            results=[tuple_type(results)] if regions else results,
            operands=given,
            attributes=made,
            regions=len(regions),
            loc=location or self._unknown,
        )
        for region, graph in zip(operation.regions, regions, strict=True):
            self._region(region, graph)
        if regions:
            operation = self._ir.Operation.create(
                "torch.prim.TupleUnpack",
                results=results,
                operands=[operation.results[0]],
                loc=location or self._unknown,
            )
        return tuple(operation.results)

    def _packed(self, values: Sequence[Value]) -> Value:
        made = tuple_type([value.type for value in values])
        return self._ir.Operation.create(
            "torch.prim.TupleConstruct", results=[made], operands=list(values), loc=self._unknown
        ).results[0]

    def _region(self, region: Any, graph: Graph) -> None:
        types = [mlir_type(a.type) for a in graph.arguments]
        block = self._ir.Block.create_at_start(region, types, [self._unknown] * len(types))
        outer, self._constants = self._constants, Constants()  # a region is isolated
        with self._ir.InsertionPoint(block):
            returned = self._body(graph, tuple(block.arguments))
            self._ir.Operation.create("dist.yield", operands=[self._packed(returned)], loc=self._unknown)
        self._constants = outer

    def _tensor_literal(
        self, op: Op, types: Sequence[TensorType], location: Any, layouts: Sequence[str]
    ) -> tuple[Value, ...]:
        attributes = {"value": self._ir.Attribute.parse(op.literals["value"])}
        if layouts:
            attributes[LAYOUTS] = encode(tuple(layouts))
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
        return self._body(graph, self.arguments, keep)

    def _body(self, graph: Graph, arguments: Sequence[Value], keep: Sequence[bool] | None = None) -> list[Value]:
        values: dict[int, Value] = dict(enumerate(arguments))
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


_registered_names: dict[str, bool] = {}
_LIST_RESULTS = frozenset(
    ("aten.split.Tensor", "aten.split_with_sizes", "aten.chunk", "aten.unbind.int", "aten.tensor_split.sections")
)


def module_of(graph: Graph, mesh: Any) -> Module:
    """A function as a module of its own, for the mesh of another (`Module.mesh_attribute`): so passes see regions."""
    made = Module.empty(mesh)
    with Builder(made, MAIN, graph.arguments) as build:
        build.finish(build.inline_all(graph), graph.aliases, graph.return_layouts)
    return made


def rewrite(
    module: Module,
    body: Callable[[Graph, Builder], Sequence[Value]],
    arguments: Sequence[Argument] | None = None,
    return_layouts: Sequence[str] | None = None,
    *,
    regions: bool = True,
) -> Module:
    """The one wrapper over rewriting: `main` of `module` is read, `body` builds its successor in a new module.

    `arguments` and `return_layouts` are the new function's, where they differ from the old ones. Aliases stay. Regions
    are rewritten first, by the same `body`, unless it sees to them itself.
    """
    mesh, graph = module.mesh_attribute, module.graph
    if regions:
        graph = with_regions(graph, lambda region: rewrite(module_of(region, mesh), body).graph)
    made = Module.empty(mesh)
    with Builder(made, graph.name, graph.arguments if arguments is None else arguments) as build:
        layouts = graph.return_layouts if return_layouts is None else return_layouts
        build.finish(body(graph, build), graph.aliases, layouts)
    return made
