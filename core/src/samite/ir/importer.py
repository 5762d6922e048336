"""FX → MLIR: torch-mlir's importer, with Samite's collectives as `dist` ops and users' source lines as locations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import torch

from samite.errors import CaptureError, PlacementError
from samite.ir.attributes import encode
from samite.ir.collectives import COLLECTIVES, RANK_LOCAL, split_axes
from samite.ir.complex_numbers import write_out_complex
from samite.ir.constraints import read
from samite.ir.context import TensorType, context, dtype_codes, tuple_type
from samite.ir.dialect import mesh_attribute
from samite.ir.graph import Graph
from samite.ir.module import Module
from samite.ir.regions import call_of, is_control_flow
from samite.ir.scan import function
from samite.ir.strides import write_out_strides
from samite.layout import from_placements

__all__ = ["import_graph", "trace"]

_DIST_CALLS = frozenset((*COLLECTIVES, *RANK_LOCAL, "start", "wait"))
_UNREADABLE = frozenset((torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2))
"""dtypes whose literals Python cannot read back; float32 holds all their values."""


def import_graph(
    graph: torch.fx.Graph,
    arguments: Sequence[tuple[str, str]] = (),
    aliases: Sequence[int] = (),
    mesh: Any = None,
    name: str = "main",
) -> Module:
    """A module whose function `name` is the FX graph: one argument a placeholder.

    `arguments` are (name, owner) of each, `aliases` the argument that each result replaces, or -1. Every node needs a
    fake tensor in meta["val"]; meta["custom"] gives its line, phase and forward-op number.
    """
    from torch_mlir import ir
    from torch_mlir.extras.fx_importer import FxImporter

    node_importer, located_cache = _importers()
    _write_out(graph)
    with context(), ir.Location.unknown():
        importer = FxImporter(context=context(), config_check=False, graph_node_importer_cls=node_importer)
        importer._cc = located_cache(context(), py_attr_tracker=importer._py_attr_tracker)
        importer._cc.axes = {} if mesh is None else dict(zip(mesh.axes, mesh.shape, strict=True))
        importer.import_stateless_graph(graph, func_name=name)
        module = Module(importer.module)
        if mesh is not None:
            module.mlir.operation.attributes["dist.mesh"] = mesh_attribute(mesh)
        made = function(module.mlir, name)
        if arguments:
            named = [{"samite.name": encode(n)} | ({"samite.owner": encode(o)} if o else {}) for n, o in arguments]
            made.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(n) for n in named])
        if aliases:
            replaced = [{"samite.alias": encode(a)} if a >= 0 else {} for a in aliases]
            made.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(r) for r in replaced])
    return module


def trace(body: Callable[..., Any], operands: Sequence[TensorType]) -> Graph:
    """What a torch function over tensors of these types does, as a graph to `Builder.inline`.

    This is how rules, decompositions and reshards are written: in torch, with `torch.ops.samite` collectives.
    """
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = body(*tensors)
        return tuple(results) if isinstance(results, (tuple, list)) else (results,)

    with FakeTensorMode(), torch.no_grad():
        fakes = [torch.empty(t.shape, dtype=getattr(torch, t.dtype)) for t in operands]
        traced = make_fx(flat)(*fakes)
        if any(_mutates(node) for node in traced.graph.nodes):
            traced = make_fx(torch.func.functionalize(traced, remove="mutations"))(*fakes)
    for node in list(traced.graph.nodes):
        if node.target in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    traced.graph.eliminate_dead_code()
    return import_graph(traced.graph).graph


def _write_out(graph: torch.fx.Graph) -> None:
    """What the torch dialect has no words for, in other words; in what control flow calls as well."""
    for node in graph.nodes:
        if node.op == "call_function" and is_control_flow(node.target):
            for function in call_of(node).functions:
                _write_out(function.graph)
    write_out_strides(graph)
    write_out_complex(graph)


def _mutates(node: torch.fx.Node) -> bool:
    target: Any = node.target
    return node.op == "call_function" and hasattr(target, "_schema") and target._schema.is_mutable


@cache
def _importers() -> tuple[type, type]:
    """torch-mlir's two classes with our cases; made late, because importing them loads MLIR."""
    from torch_mlir import ir
    from torch_mlir.extras.fx_importer import ContextCache, GraphNodeImporter

    class LocatedCache(ContextCache):
        """Locations from the frontend's marks: `loc("backward:12"("train.py":41:0))`. `axes` are the mesh's."""

        axes: dict[str, int]

        def get_node_location(self, node: torch.fx.Node) -> Any:
            custom: dict[str, Any] = node.meta.get("custom") or {}
            file, _, line = custom.get("line", "").rpartition(":")
            at = ir.Location.file(file, int(line), 0) if line.isdigit() else ir.Location.unknown()
            phase = custom.get("phase", "")
            return ir.Location.name(f"{phase}:{custom.get('op', -1)}", at) if phase else at

        def dtype_to_type(self, dtype: torch.dtype) -> Any:
            try:
                return super().dtype_to_type(dtype)
            except KeyError:
                raise CaptureError(f"the IR has no type for tensors of {dtype}", help="cast it: x.to(...)") from None

    def packed(values: Sequence[Any], loc: Any) -> Any:
        made = tuple_type([value.type for value in values])
        return ir.Operation.create("torch.prim.TupleConstruct", results=[made], operands=list(values), loc=loc).result

    class NodeImporter(GraphNodeImporter):
        def _import_torch_op_overload(self, loc: Any, node: torch.fx.Node, concrete_target: Any = None) -> None:
            target: Any = concrete_target or node.target
            if target.namespace == "samite" and target._opname in _DIST_CALLS:
                self._import_dist_call(loc, node, target)
            elif target.namespace == "samite" and target._opname == "constrain":
                self._import_constraint(loc, node, target)
            else:
                super()._import_torch_op_overload(loc, node, concrete_target)

        def _import_hop(self, loc: Any, node: torch.fx.Node, hop: Any) -> None:
            if not is_control_flow(hop):
                raise CaptureError(
                    f"{hop} has no form in the IR", where=(node.meta.get("custom") or {}).get("line", "")
                )
            call = call_of(node)
            types = [self._cc.value_info_to_type(value) for value in node.meta["val"]]
            given = [self.resolve_node_value(x) for x in call.operands]
            first = 1 if call.name == "dist.cond" else 0
            operation = ir.Operation.create(
                call.name,
                results=[tuple_type(types)],
                operands=[*given[:first], packed(given[first:], loc)],
                attributes={key: encode(value) for key, value in call.attributes.items()},
                regions=len(call.functions),
                loc=loc,
            )
            for region, called in zip(operation.regions, call.functions, strict=True):
                self._import_region(region, called.graph)
            made = ir.Operation.create(
                "torch.prim.TupleUnpack", results=types, operands=[operation.results[0]], loc=loc
            )
            self._multi_result_nodes.add(node)
            for index, value in enumerate(made.results):
                self.bind_node_value(node, value, index)

        def _import_region(self, region: Any, graph: torch.fx.Graph) -> None:
            unknown = ir.Location.unknown()
            inputs = graph.find_nodes(op="placeholder")
            types = [self._cc.node_val_to_type(node) for node in inputs]
            block = ir.Block.create_at_start(region, types, [unknown] * len(types))
            inner = NodeImporter(self.fx_importer, self._c, self._cc, block)
            output = graph.output_node()
            inner.import_nodes(node for node in graph.nodes if node is not output)
            with ir.InsertionPoint(block), unknown:
                returned: Any = output.args[0]
                values = [inner._import_argument(unknown, value) for value in returned]
                ir.Operation.create("dist.yield", operands=[packed(values, unknown)])

        def bind_node_value(self, node: torch.fx.Node, value: Any, result_index: int = 0) -> None:
            if (node, result_index) not in self._v:  # a constant is bound anew at every use
                super().bind_node_value(node, value, result_index)

        def _import_dist_call(self, loc: Any, node: torch.fx.Node, target: Any) -> None:
            schema = target._schema
            bound = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
            bound |= zip((a.name for a in schema.arguments), node.args, strict=False)
            tensors = [self.resolve_node_value(a) for a in bound.values() if isinstance(a, torch.fx.Node)]
            operation = ir.Operation.create(
                f"dist.{target._opname}",
                results=self._unpack_node_result_types(node, schema),
                operands=tensors,
                attributes={key: encode(value) for key, value in _dist_attributes(bound).items()},
                loc=loc,
            )
            self.bind_node_value(node, operation.results[0])

        def _import_constraint(self, loc: Any, node: torch.fx.Node, target: Any) -> None:
            x, placements = cast("tuple[torch.fx.Node, str]", node.args)
            layout = _constraint(node, x.meta["val"].shape, placements, cast(LocatedCache, self._cc).axes)
            operation = ir.Operation.create(
                "dist.constrain",
                results=self._unpack_node_result_types(node, target._schema),
                operands=[self.resolve_node_value(x)],
                attributes={"layout": encode(layout)},
                loc=loc,
            )
            self.bind_node_value(node, operation.results[0])

        def _import_argument(self, loc: Any, arg: Any, expected_jit_type: Any = None) -> Any:
            if isinstance(arg, tuple) and isinstance(expected_jit_type, torch.ListType):  # a shape, as torch gives it
                arg = torch.fx.immutable_collections.immutable_list(arg)
            return super()._import_argument(loc, arg, expected_jit_type)

        def _import_literal(self, py_value: Any, info: Any = None) -> Any:
            if isinstance(py_value, torch.device):
                py_value = None  # programs are device neutral
            if isinstance(py_value, torch.dtype):
                py_value = dtype_codes().get(py_value, py_value)
            if not isinstance(py_value, torch.Tensor):
                return super()._import_literal(py_value, info)
            if py_value.dtype in _UNREADABLE:
                wide = self._import_literal(py_value.float(), info)
                return self._convert_type(wide, torch.Tensor, py_value.dtype, py_value.size())
            if py_value.is_complex():
                raise CaptureError(f"a constant tensor of {py_value.dtype}", help="pass it in as an argument")
            # torch-mlir keeps tensors as resources, which Python cannot read back; literals of a step are small.
            array = torch.Tensor.numpy(py_value.detach().contiguous())
            type = self._cc.tensor_to_vtensor_type(py_value)
            element = self._cc.dtype_to_type(py_value.dtype)
            value = ir.DenseElementsAttr.get(array, type=element, shape=list(array.shape))
            return ir.Operation.create("torch.vtensor.literal", results=[type], attributes={"value": value}).result

    return NodeImporter, LocatedCache


def _constraint(node: torch.fx.Node, shape: Sequence[int], placements: str, mesh: dict[str, int]) -> str:
    try:
        return str(from_placements(shape, read(placements), mesh))
    except PlacementError as error:
        error.what = f"constrain: {error.what}"
        error.where = _line(node)
        raise


def _line(node: torch.fx.Node) -> str:
    return (node.meta.get("custom") or {}).get("line", "")


def _dist_attributes(bound: dict[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in bound.items() if key not in ("x", "parts", "peers")}
    if "axes" in found:
        found["axes"] = split_axes(found["axes"])
    if "pairs" in found:
        found["pairs"] = tuple(zip(found["pairs"][::2], found["pairs"][1::2], strict=True))
    return found
