"""The graph of a call of one op that is not taken apart: written down, which is quicker than tracing it."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from samite.eager.calls import Call, Leaf

__all__ = ["graph_of_op"]


def graph_of_op(
    call: Call, operands: Sequence[torch.Tensor], made: Sequence[torch.Tensor | None], taken_apart: Mapping[Any, Any]
) -> GraphModule | None:
    """A function of the call's leaves that gives its new results, or the new value of the leaf that it writes; None if
    the call is not so simple. `operands` and what is `made` of them are fakes; `taken_apart` are ops that are more than
    one op in a graph."""
    op = _functional(call.func)
    if op is None or op in taken_apart:
        return None
    writes = op is not call.func
    if writes and (not call.leaves[0].written or made[0] is not operands[0] or call.leaves[0].place != (0,)):
        return None
    graph = Graph()
    leaves: list[Node] = []
    for index, value in enumerate(operands):
        leaves.append(graph.placeholder(f"arg{index}_1"))
        leaves[-1].meta["val"] = value
    given = iter(leaves)
    args = tuple(_replaced(value, given) for value in call.args)
    node = graph.call_function(op, args, {key: _replaced(v, given) for key, v in call.kwargs.items()})
    listed = str(op._schema.returns[0].type).startswith("List")
    many = listed or len(op._schema.returns) > 1
    node.meta["val"] = (list if listed else tuple)(made) if many else made[0]
    graph.output(tuple(_parts(graph, node, made)) if many else (node,))
    return GraphModule(torch.nn.Module(), graph)


@cache
def _functional(func: Any) -> Any:
    """The op itself, or the one that it does in place; None of an op that is made of others or has no such form."""
    if not isinstance(func, torch._ops.OpOverload) or not func._schema.returns:
        return None
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return None
    if not func._schema.is_mutable:
        return func
    from samite.frontend.functionalizing import out_of_place

    name, found = func._schema.name, out_of_place(func)
    if found is None or name in ("aten::copy_", "aten::fill_", "aten::zero_"):
        return None
    same_order = [a.name for a in found._schema.arguments] == [a.name for a in func._schema.arguments]
    return found if same_order else None


def _replaced(value: Any, given: Iterator[Node]) -> Any:
    if isinstance(value, Leaf):
        return next(given)
    if isinstance(value, list):
        return [next(given) if isinstance(item, Leaf) else item for item in value]
    return value


def _parts(graph: Graph, node: Node, made: Sequence[torch.Tensor | None]) -> Iterator[Node]:
    for index, value in enumerate(made):
        if value is not None:
            part = graph.call_function(operator.getitem, (node, index))
            part.meta["val"] = value
            yield part
