"""MLIR → FX: a module's function as a graph of torch ops, the form that torch's own backends take."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any, Protocol

import torch

from samite.errors import UnsupportedOp, VerifyError
from samite.ir.collectives import join_axes
from samite.ir.context import dtype_codes
from samite.ir.graph import Constant, Graph, ListOf, Node, Slot, overload
from samite.ir.module import Module

__all__ = ["graph_to_fx", "to_fx"]

# The IR has no strides, so a view may meet a tensor that cannot be viewed.
_BY_VALUE = {"aten.view": "aten.reshape", "aten._unsafe_view": "aten.reshape"}


class Lowerable(Protocol):
    """What `samite.hal.Program` is to this layer, which lies below it."""

    @property
    def module(self) -> str: ...


def to_fx(program: Lowerable) -> torch.fx.GraphModule:
    """A program's module as FX: one placeholder an argument, a tuple of all results.

    Collectives are ops of `torch.ops.samite`. Every node has its `TensorType`s in meta["types"] and its `Source` in
    meta["source"].
    """
    module = Module.parse(program.module)
    return graph_to_fx(module.graph, module.mesh)


def graph_to_fx(graph: Graph, mesh: Mapping[str, int]) -> torch.fx.GraphModule:
    """The same of a scanned function."""
    made = torch.fx.Graph()
    values: list[Any] = []
    for index, argument in enumerate(graph.arguments):
        values.append(made.placeholder(f"arg{index}"))
        values[-1].meta["types"] = (argument.type,)
    holder = torch.nn.Module()
    for node in graph.nodes:
        types = tuple(graph.types[r] for r in node.results)
        if node.op.name == "vtensor.literal":
            name = f"literal{sum(1 for _ in holder.buffers())}"
            holder.register_buffer(name, _literal(node, types[0].dtype))
            call = made.get_attr(name)
        elif node.op.name == "constant.none":
            values.append(None)
            continue
        else:
            target, args, kwargs = _call(graph, node, mesh, [values[o] for o in node.operands])
            call = made.call_function(target, args, kwargs)
        call.meta.update(types=types, source=node.source)
        if len(types) == 1 and not _returns_list(node):
            values.append(call)
            continue
        for index, type in enumerate(types):
            part = made.call_function(operator.getitem, (call, index))
            part.meta.update(types=(type,), source=node.source)
            values.append(part)
    made.output(tuple(values[r] for r in graph.returns))
    return torch.fx.GraphModule(holder, made)


def _call(
    graph: Graph, node: Node, mesh: Mapping[str, int], operands: list[torch.fx.Node]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    if node.op.name.startswith("dist."):
        return *_dist_call(node, mesh, operands), {}
    target = overload(_BY_VALUE.get(node.op.name, node.op.name))
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument, item in zip(target._schema.arguments, node.op.form, strict=False):
        value = _decode(argument, _value(item, operands))
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return target, tuple(args), kwargs


def _value(item: Slot | Constant | ListOf, operands: list[torch.fx.Node]) -> Any:
    if isinstance(item, Slot):
        return operands[item.position]
    if isinstance(item, Constant):
        return item.value
    return [_value(i, operands) for i in item.items]


def _dist_call(node: Node, mesh: Mapping[str, int], operands: list[torch.fx.Node]) -> tuple[Any, tuple[Any, ...]]:
    literals = node.op.literals
    if node.op.name == "dist.transfer":
        what = f"a value goes from {literals['source']} to {literals['target']}"
        raise UnsupportedOp(f"{what}, and this backend has one kind of device", where=node.source.line)
    if node.op.name != "dist.wait" and "axes" not in literals:
        raise VerifyError(f"{node.op.name} is of the global program; partition makes it local", where=node.source.line)
    peers = [mesh[axis] for axis in literals.get("axes", ())]
    given = {key: list(value) if isinstance(value, tuple) else value for key, value in literals.items()} | {
        "axes": join_axes(literals.get("axes", ())),
        "parts": prod(peers),
        "peers": peers,
        "pairs": [end for pair in literals.get("pairs", ()) for end in pair],
    }
    target = overload(f"samite.{node.op.name.removeprefix('dist.')}")
    return target, (*operands, *(given[a.name] for a in target._schema.arguments[len(operands) :]))


@cache
def _enums() -> dict[str, dict[int, Any]]:
    """torch-mlir writes dtypes, layouts and memory formats as ints; back to torch's objects by schema type."""
    from torch_mlir.extras import fx_importer

    tables = {
        "ScalarType": dtype_codes(),
        "Layout": fx_importer.TORCH_LAYOUT_TO_INT,
        "MemoryFormat": fx_importer.TORCH_MEMORY_FORMAT_TO_INT,
    }
    return {name: {code: value for value, code in table.items()} for name, table in tables.items()}


def _decode(argument: torch.Argument, value: Any) -> Any:
    kind = str(argument.real_type)  # `type` says int of all three
    if isinstance(value, int) and not isinstance(value, bool):
        for name, table in _enums().items():
            if name in kind:
                return table[value]
    return value


def _returns_list(node: Node) -> bool:
    return str(overload(node.op.name)._schema.returns[0].type).startswith("List") if _is_torch(node) else False


def _is_torch(node: Node) -> bool:
    return not node.op.name.startswith("dist.") and node.op.name != "vtensor.literal"


def _literal(node: Node, dtype: str) -> torch.Tensor:
    import numpy as np
    from torch_mlir import ir

    from samite.ir.context import context

    with context():
        value = ir.DenseElementsAttr(ir.Attribute.parse(node.op.literals["value"]))
        return torch.from_numpy(np.array(value)).to(getattr(torch, dtype))
