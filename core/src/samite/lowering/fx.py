"""MLIR → FX: a module's function as a graph of torch ops, the form that torch's own backends take."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from typing import Any, Protocol

import torch

from samite.errors import UnsupportedOp, VerifyError
from samite.ir.collectives import join_axes
from samite.ir.context import TensorType, dtype_codes
from samite.ir.graph import Constant, Graph, ListOf, Node, Slot, overload
from samite.ir.module import Module
from samite.ir.numbers import enumeration, is_number
from samite.ir.regions import split_operands
from samite.lowering.sizes import Sizes

__all__ = ["graph_to_fx", "to_fx"]

# The IR has no strides, so a view may meet a tensor that cannot be viewed.
_BY_VALUE = {"aten.view": "aten.reshape", "aten._unsafe_view": "aten.reshape"}


class Lowerable(Protocol):
    """What `samite.hal.Program` is to this layer, which lies below it."""

    @property
    def module(self) -> str: ...


def to_fx(program: Lowerable, sizes: Sizes | None = None) -> torch.fx.GraphModule:
    """A program's module as FX: one placeholder an argument, a tuple of all results.

    Collectives are ops of `torch.ops.samite`. Every node has its `TensorType`s in meta["types"] and its `Source` in
    meta["source"]. Regions are modules that it holds. With `sizes` the graph is that of all programs that they tell of:
    sizes that vary are integers, placeholders after the arguments, with no types and their column in meta["size"], and
    are so in the types of others.
    """
    module = Module.parse(program.module)
    return graph_to_fx(module.graph, module.mesh, sizes)


def graph_to_fx(graph: Graph, mesh: Mapping[str, int], sizes: Sizes | None = None) -> torch.fx.GraphModule:
    """The same of a scanned function."""
    made = torch.fx.Graph()
    values: list[Any] = [made.placeholder(f"arg{index}") for index in range(len(graph.arguments))]
    numbers = _Numbers(made, sizes)
    holder = torch.nn.Module()
    for node in graph.nodes:
        if node.op.name == "vtensor.literal":
            name = f"literal{sum(1 for _ in holder.buffers())}"
            holder.register_buffer(name, _literal(node, node.op.results[0].dtype))
            call = made.get_attr(name)
        elif node.op.name == "constant.none":
            call = None
        elif node.op.regions:
            call = _control(node, mesh, [values[o] for o in node.operands], made, holder)
        else:
            target, args, kwargs = _call(node, mesh, [values[o] for o in node.operands], numbers)
            call = made.call_function(target, args, kwargs)
        types = tuple(map(numbers.type, node.op.results))
        if call is None:
            values.append(None)
            continue
        call.meta.update(types=types, source=node.source)
        if len(types) == 1 and not _returns_list(node) and not node.op.regions:
            values.append(call)
            continue
        for index, type in enumerate(types):
            part = made.call_function(operator.getitem, (call, index))
            part.meta.update(types=(type,), source=node.source)
            values.append(part)
    for value, argument in zip(values, graph.arguments, strict=False):
        value.meta["types"] = (numbers.type(argument.type),)
    made.output(tuple(values[r] for r in graph.returns))
    return torch.fx.GraphModule(holder, made)


def _control(
    node: Node, mesh: Mapping[str, int], operands: list[torch.fx.Node], graph: torch.fx.Graph, holder: torch.nn.Module
) -> torch.fx.Node:
    """A higher-order op over modules of its own. Sizes within are numbers, whatever `Sizes` say: see `numbers`."""
    functions: list[torch.fx.Node] = []
    for region in node.op.regions:
        name = f"region{sum(1 for _ in holder.children())}"
        holder.add_module(name, graph_to_fx(region, mesh))
        functions.append(graph.get_attr(name))
        functions[-1].meta["types"] = ()
    ops, groups = torch.ops.higher_order, [tuple(group) for group in split_operands(node.op, operands)]
    if node.op.name == "dist.cond":
        (predicate,), inputs = groups
        return graph.call_function(ops.cond, (predicate, *functions, inputs))
    if node.op.name == "dist.while":
        return graph.call_function(ops.while_loop, (*functions, *groups))
    carried, sliced, others = groups
    if carried:
        return graph.call_function(ops.scan, (*functions, list(carried), list(sliced), others))
    return graph.call_function(ops.map_impl, (*functions, list(sliced), list(others)))


class _Numbers:
    """What the numbers of a function are in the graph, asked for in the order of `samite.ir.numbers`: themselves, or
    placeholders where sizes vary."""

    def __init__(self, graph: torch.fx.Graph, sizes: Sizes | None) -> None:
        self._given: Iterator[Any] | None = None
        if sizes is not None:
            named = [graph.placeholder(f"size{column}") for column in range(sizes.count)]
            for column, node in enumerate(named):
                node.meta.update(types=(), size=column)
            pairs = zip(sizes.numbers, sizes.columns, strict=True)
            self._given = (number if column < 0 else named[column] for number, column in pairs)

    def next(self, number: int) -> Any:
        return number if self._given is None else next(self._given)

    def type(self, type: TensorType) -> TensorType:
        return TensorType(tuple(map(self.next, type.shape)), type.dtype)


def _call(
    node: Node, mesh: Mapping[str, int], operands: list[torch.fx.Node], numbers: _Numbers
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    if node.op.name.startswith("dist."):
        return *_dist_call(node, mesh, operands, numbers), {}
    target = overload(_BY_VALUE.get(node.op.name, node.op.name))
    args: list[Any] = []
    kwargs: dict[str, Any] = {}

    def value(argument: torch.Argument, item: Slot | Constant | ListOf) -> Any:
        if isinstance(item, Slot):
            return operands[item.position]
        if isinstance(item, ListOf):
            return [value(argument, i) for i in item.items]
        return numbers.next(item.value) if is_number(argument, item) else item.value

    for argument, item in zip(target._schema.arguments, node.op.form, strict=False):
        made = _decode(argument, value(argument, item))
        if argument.kwarg_only:
            kwargs[argument.name] = made
        else:
            args.append(made)
    return target, tuple(args), kwargs


def _dist_call(
    node: Node, mesh: Mapping[str, int], operands: list[torch.fx.Node], numbers: _Numbers
) -> tuple[Any, tuple[Any, ...]]:
    literals = node.op.literals
    if node.op.name == "dist.transfer":
        what = f"a value goes from {literals['source']} to {literals['target']}"
        raise UnsupportedOp(f"{what}, and this backend has one kind of device", where=node.source.line)
    if node.op.name != "dist.wait" and "axes" not in literals:
        raise VerifyError(f"{node.op.name} is of the global program; partition makes it local", where=node.source.line)
    peers = [mesh[axis] for axis in literals.get("axes", ())]
    given: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in literals.items()} | {
        "axes": join_axes(literals.get("axes", ())),
        "parts": prod(peers),
        "peers": peers,
        "pairs": [end for pair in literals.get("pairs", ()) for end in pair],
    }
    if node.op.name == "dist.valid_length":
        given["size"] = numbers.next(given["size"])
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
    if isinstance(value, int) and not isinstance(value, bool) and (name := enumeration(argument)):
        return _enums()[name][value]
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
