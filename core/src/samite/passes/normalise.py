"""normalise: canonical ops. Decompositions are torch code, traced and inlined; copies and casts that change nothing go;
equal ops of one phase become one; what nobody uses goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from samite.ir.build import Builder, Value, rewrite
from samite.ir.graph import Graph, Node, Op, Slot, overload
from samite.ir.importer import trace
from samite.ir.module import Module
from samite.passes.dead_code import live

__all__ = ["DECOMPOSITIONS", "Normalise"]


def mean(x: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> torch.Tensor:
    """A mean is a sum and a global count: shards hold different numbers of elements."""
    dims = list(range(x.ndim)) if not dim else [d % x.ndim for d in dim]
    count = 1
    for d in dims:
        count *= x.shape[d]
    return torch.ops.aten.sum.dim_IntList(x, dims, keepdim) / count


def vector_norm(
    x: torch.Tensor, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, **_: Any
) -> torch.Tensor:
    dims = list(range(x.ndim)) if dim is None else list(dim)
    if ord == float("inf"):
        return x.abs().amax(dims, keepdim)
    if ord == float("-inf"):
        return x.abs().amin(dims, keepdim)
    if ord == 0:
        return (x != 0).to(x.dtype).sum(dims, keepdim)
    if ord == 1:
        return x.abs().sum(dims, keepdim)
    if ord == 2:
        return (x * x).sum(dims, keepdim).sqrt()
    return x.abs().pow(ord).sum(dims, keepdim).pow(1 / ord)


def filled(value: float | None) -> Callable[..., torch.Tensor]:
    """`*_like` and `new_*` use no data of their operand: as `full` they do not depend on it."""

    def make(x: torch.Tensor, *, fill_value: float | None = None, **literals: Any) -> torch.Tensor:
        size = literals.get("size", list(x.shape))
        chosen: Any = fill_value if value is None else value
        return torch.full(size, chosen, dtype=literals["_dtype"])

    return make


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "aten.mean": mean,
    "aten.mean.dim": mean,
    "aten.linalg_vector_norm": vector_norm,
    "aten.ones_like": filled(1),
    "aten.zeros_like": filled(0),
    "aten.empty_like": filled(0),
    "aten.full_like": filled(None),
    "aten.new_ones": filled(1),
    "aten.new_zeros": filled(0),
    "aten.new_empty": filled(0),
    "aten.new_full": filled(None),
}
"""By op: torch code over its tensors, with its literals as keywords (`_dtype` is the result's)."""

_SAME = frozenset(("aten.detach", "aten.alias", "aten.clone", "aten.lift_fresh_copy", "aten._to_copy"))


class Normalise:
    name = "normalise"

    def run(self, module: Module) -> Module:
        return rewrite(module, _normalise)


@cache
def _decomposed(op: Op) -> Graph | None:
    function = DECOMPOSITIONS.get(op.name)
    if function is None:
        return None
    schema = overload(op.name)._schema.arguments
    tensors = {a.name for a, item in zip(schema, op.form, strict=True) if isinstance(item, Slot)}
    literals = {key: value for key, value in op.literals.items() if key not in tensors}
    literals["_dtype"] = getattr(torch, op.results[0].dtype)
    return trace(lambda *x: function(*x, **literals), op.operands)


def _normalise(graph: Graph, build: Builder) -> list[Value]:
    keep = live(graph)
    values: list[Value] = list(build.arguments)
    known: dict[tuple[Any, ...], tuple[tuple[Value, ...], tuple[int, ...]]] = {}
    numbers = list(range(len(values)))  # equal values have equal numbers
    for index, node in enumerate(graph.nodes):
        operands = tuple(numbers[o] for o in node.operands)
        if not keep[index]:
            values.extend([None] * len(node.results))
            numbers.extend(node.results)
        elif _is_copy(node):
            values.append(values[node.operands[0]])
            numbers.append(operands[0])
        else:
            key = (node.op, operands, node.source.phase)
            if key not in known:
                made = _emit(node, [values[o] for o in node.operands], build)
                known[key] = made, node.results
            made, first = known[key]
            values.extend(made)
            numbers.extend(first)
    return [values[r] for r in graph.returns]


def _is_copy(node: Node) -> bool:
    """In the IR a value is a value: copies, and casts to the dtype that it has, are it."""
    return node.op.name in _SAME and node.op.operands == node.op.results


def _emit(node: Node, operands: list[Value], build: Builder) -> tuple[Value, ...]:
    decomposed = _decomposed(node.op)
    if decomposed is not None:
        return build.inline(decomposed, operands, node.location)
    return build.op(node.op, operands, node.op.results, node.location)
