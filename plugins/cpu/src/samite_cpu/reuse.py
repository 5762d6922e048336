"""Which values may be written over dying ones, or straight into the memory of the next state.

ATen's pointwise kernels read and write each element once, so their `out` may be one of their operands. That saves
memory, and time where a fresh buffer would fall out of the cache. Only what is certain is reused: the operand's memory
was made by an op known to return its own (`FRESH`), and no value that may share it is read again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from samite.hal.program import Program
from samite.ir.adam import adam, adam_into, amsgrad
from samite.ir.sgd import sgd, sgd_into, sgd_momentum, sgd_momentum_into
from samite.runtime.interpreter import Expression, Writer

__all__ = ["FRESH", "OUT", "plan"]

OUT: dict[str, str] = {
    **dict.fromkeys(
        (
            *("abs", "addcdiv", "addcmul", "bitwise_not", "ceil", "clamp", "clamp.Tensor", "clamp_max", "clamp_min"),
            *("cos", "erf", "exp", "expm1", "floor", "gelu", "log", "log1p", "log2", "logical_not", "maximum"),
            *("minimum", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "sqrt", "tanh"),
            *("trunc", "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"),
            *("add.Scalar", "sub.Scalar", "mul.Scalar", "div.Scalar"),
        ),
        "out",
    ),
    "clamp.Tensor": "Tensor_out",
    "lerp.Scalar": "Scalar_out",
    "lerp.Tensor": "Tensor_out",
    "pow.Tensor_Scalar": "Tensor_Scalar_out",
    "pow.Tensor_Tensor": "Tensor_Tensor_out",
    "where.self": "self_out",
    **dict.fromkeys(
        ("gelu_backward", "sigmoid_backward", "silu_backward", "tanh_backward", "threshold_backward"), "grad_input"
    ),
}
"""Pointwise ops of aten (no overload name: the default one) and their `out` overload, which may alias any operand."""

FRESH: frozenset[str] = frozenset(
    (
        *OUT,
        *("_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data", "_to_copy"),
        *("addmm", "amax", "amin", "arange", "baddbmm", "bmm", "cat", "clone", "convolution", "convolution_backward"),
        *("cumsum", "embedding", "embedding_dense_backward", "full", "gather", "index.Tensor", "index_select"),
        *("max_pool2d_with_indices", "max_pool2d_with_indices_backward", "mean", "mean.dim", "mm", "mv"),
        *("native_batch_norm_backward", "native_layer_norm", "native_layer_norm_backward", "nll_loss_backward"),
        *("nll_loss_forward", "relu", "rsub.Scalar", "scatter.src", "scatter.value", "scatter_add", "stack", "sum"),
        *("sum.dim_IntList", "topk", "tril", "triu", "var_mean.correction", "zeros", "ones"),
        *("eq.Scalar", "eq.Tensor", "ge.Scalar", "ge.Tensor", "gt.Scalar", "gt.Tensor"),
        *("le.Scalar", "le.Tensor", "lt.Scalar", "lt.Tensor", "ne.Scalar", "ne.Tensor"),
        *("logical_and", "logical_or"),
    )
)
"""Ops whose results are memory of their own, whatever their arguments. All others are taken to return views."""

_UPDATES: Mapping[Any, Callable[..., Any]] = {
    adam: adam_into,
    amsgrad: adam_into,
    sgd: sgd_into,
    sgd_momentum: sgd_momentum_into,
}
"""Optimizer updates, and the function that writes all results of one into given tensors."""

Rewritten = dict[fx.Node, Callable[[Writer], str]]


def plan(module: fx.GraphModule, program: Program) -> Rewritten:
    """How single statements of a program's graph (nodes with meta["types"]) are to be written; all else as usual.

    Results that replace state are written to `spare(i)`, i being the state argument's index among the state.
    """
    nodes = list(module.graph.nodes)
    memory = _Memory(nodes)
    spares = _spares(nodes, program)
    rewritten: Rewritten = {}
    for position, node in enumerate(nodes):
        if (places := _update_places(node, spares)) is not None:
            rewritten[node] = _update_into(node, places)
            continue
        if node.op != "call_function" or (name := _name(node)) not in OUT:
            continue
        if node in spares:
            rewritten[node] = _into(node, OUT[name], Expression(f"spare({spares[node]})"))
            continue
        for operand in _tensors(node):
            if _types(operand) == _types(node) and memory.free_after(operand, position, node):
                rewritten[node] = _into(node, OUT[name], operand)
                memory.merge(operand, node)
                break
    return rewritten


class _Memory:
    """Which values may share memory (a union of sets), and until when each set is read."""

    def __init__(self, nodes: list[fx.Node]) -> None:
        self._parent: dict[fx.Node, fx.Node] = {}
        self._foreign: set[fx.Node] = set()  # roots of memory that is not the program's own
        self._last: dict[fx.Node, int] = {}  # by root
        self._owners: set[fx.Node] = set()
        for node in nodes:
            self._parent[node] = node
            if node.op in ("placeholder", "get_attr"):
                self._foreign.add(node)
            elif _is_fresh(node):
                self._owners.add(node)
            else:
                for operand in _tensors(node):
                    self.merge(operand, node)
        for position, node in enumerate(nodes):
            for operand in _tensors(node):
                self._last[self._root(operand)] = position

    def merge(self, one: fx.Node, other: fx.Node) -> None:
        first, second = self._root(one), self._root(other)
        if first is not second:
            self._parent[second] = first
            self._last[first] = max(self._last.get(first, -1), self._last.get(second, -1))
            if second in self._foreign:
                self._foreign.add(first)

    def free_after(self, value: fx.Node, position: int, reader: fx.Node) -> bool:
        """Whether `reader`, at `position`, may write over `value`, which it reads."""
        root = self._root(value)
        return (
            # Only a value that was made whole: an expanded one has elements that share memory.
            value in self._owners
            and root not in self._foreign
            and self._last[root] == position
            # A view of `value` beside it would be overwritten while it is read.
            and all(other is value or self._root(other) is not root for other in _tensors(reader))
        )

    def _root(self, node: fx.Node) -> fx.Node:
        while (parent := self._parent[node]) is not node:
            self._parent[node] = self._parent[parent]
            node = parent
        return node


def _is_fresh(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        (source,) = node.all_input_nodes
        return _name(source) in FRESH
    return _name(node) in FRESH


def _spares(nodes: list[fx.Node], program: Program) -> dict[fx.Node, int]:
    """Nodes whose value is the next one of a state argument and nothing else that leaves the program -> its index."""
    results: Any = nodes[-1].args[0]
    inputs = [node for node in nodes if node.op == "placeholder"]
    kinds = [argument.kind for argument in program.arguments]
    found: dict[fx.Node, int] = {}
    for node, result in zip(results, program.results, strict=True):
        if result.alias >= 0 and results.count(node) == 1 and _types(node) == _types(inputs[result.alias]):
            found[node] = kinds[: result.alias].count("state")
    return found


def _into(node: fx.Node, overload: str, target: fx.Node | Expression) -> Callable[[Writer], str]:
    """`node` by its `out` overload, written to `target`."""
    op: Any = node.target
    out = getattr(getattr(torch.ops.aten, op._opname), overload)
    named: Mapping[str, Any] = dict(zip((a.name for a in op._schema.arguments), node.args, strict=False)) | node.kwargs
    arguments: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument in out._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            keywords[argument.name] = target
        elif argument.name in named and argument.kwarg_only:
            keywords[argument.name] = named[argument.name]
        elif argument.name in named:
            arguments.append(named[argument.name])
    return lambda writer: writer.apply(out, arguments, keywords)


def _update_places(node: fx.Node, spares: Mapping[fx.Node, int]) -> list[int] | None:
    """The states that the results of an optimizer's update replace, if each of them replaces one."""
    if node.target not in _UPDATES:
        return None
    if node in spares:
        return [spares[node]]
    count = len(_types(node))
    places = {user.args[1]: spares[user] for user in node.users if user in spares}
    return [places[i] for i in range(count)] if len(places) == count else None


def _update_into(node: fx.Node, places: list[int]) -> Callable[[Writer], str]:
    into = "".join(f"spare({place}), " for place in places)
    update, arguments = _UPDATES[node.target], list(node.args)
    return lambda writer: f"{writer.constant(update, 'update')}(({into}), {', '.join(map(writer.literal, arguments))})"


def _tensors(node: fx.Node) -> list[fx.Node]:
    """The operands of a node, but for sizes."""
    return [operand for operand in node.all_input_nodes if _types(operand)]


def _name(node: fx.Node) -> str:
    """ "add.Tensor", or "neg" for a default overload; "" for what is not an aten op."""
    op: Any = node.target
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
        return ""
    return str(op).removeprefix("aten.").removesuffix(".default")


def _types(node: fx.Node) -> Any:
    return node.meta["types"]
