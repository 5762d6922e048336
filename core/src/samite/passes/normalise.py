"""normalise: canonical ops. Decompositions are torch code, traced and inlined; what changes nothing goes;
equal ops of one phase become one; what nobody uses goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import torch

from samite.ir.build import Builder, Value, rewrite
from samite.ir.graph import Graph, Node, Op, Slot, overload
from samite.ir.importer import trace
from samite.ir.module import Module
from samite.passes.dead_code import live

__all__ = ["DECOMPOSITIONS", "Normalise"]


def accumulated(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` in the dtype in which torch adds terms up for a result of `dtype`: 16 bits hold neither sums nor squares."""
    return x.to(torch.float32 if dtype.itemsize < 4 else dtype)


def mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, _dtype: torch.dtype, **_: Any
) -> torch.Tensor:
    """A mean is a sum and a global count: shards hold different numbers of elements."""
    dims = [d % x.ndim for d in dim] if dim and x.ndim else list(range(x.ndim))
    count = prod(x.shape[d] for d in dims)
    return (torch.ops.aten.sum.dim_IntList(accumulated(x, _dtype), dims, keepdim) / count).to(_dtype)


def vector_norm(
    x: torch.Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    _dtype: torch.dtype,
    **_: Any,
) -> torch.Tensor:
    dims = list(dim) if dim and x.ndim else list(range(x.ndim))
    x = accumulated(x, _dtype)
    if ord == float("inf"):
        norm = x.abs().amax(dims, keepdim)
    elif ord == float("-inf"):
        norm = x.abs().amin(dims, keepdim)
    elif ord == 0:
        norm = (x != 0).to(x.dtype).sum(dims, keepdim)
    elif ord == 1:
        norm = x.abs().sum(dims, keepdim)
    elif ord == 2:
        norm = (x * x).sum(dims, keepdim).sqrt()
    else:
        norm = x.abs().pow(ord).sum(dims, keepdim).pow(1 / ord)
    return norm.to(_dtype)


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
    "aten.new_empty_strided": filled(0),
    "aten.new_full": filled(None),
}
"""By op: torch code over its tensors, with its literals as keywords (`_dtype` is the result's)."""

_COPIES = ("_to_copy", "alias", "clone", "detach", "lift_fresh_copy")
_VIEWS = ("_unsafe_view", "expand", "reshape", "slice.Tensor", "squeeze.dim", "view")
_SAME = frozenset(f"aten.{op}" for op in _COPIES + _VIEWS)
"""Ops that change no element: where they keep the type they change nothing."""


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
    keep = live(graph, _depends_on)
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
            key: tuple[Any, ...] = (node.op, operands, node.source.phase)
            if _is_made_anew(node):
                key = (*key, index)
            if key not in known:
                made = _emit(node, [values[o] for o in node.operands], build)
                known[key] = made, node.results
            made, first = known[key]
            values.extend(made)
            numbers.extend(first)
    return [values[r] for r in graph.returns]


def _is_made_anew(node: Node) -> bool:
    """Tensors of literals cost nothing to make twice, and one of them would tie the layouts of all its users: moments
    of every parameter of one shape begin with the same zeros."""
    return not node.operands and any(type.shape for type in node.op.results)


def _depends_on(node: Node) -> tuple[int, ...]:
    decomposed = _decomposed(node.op)
    if decomposed is None:
        return node.operands
    used = {o for inner in decomposed.nodes for o in inner.operands} | set(decomposed.returns)
    return tuple(o for i, o in enumerate(node.operands) if i in used)


def _is_copy(node: Node) -> bool:
    """In the IR a value is a value: copies, casts to the dtype and views of the shape that it has, are it."""
    return node.op.name in _SAME and node.op.operands == node.op.results


def _emit(node: Node, operands: list[Value], build: Builder) -> tuple[Value, ...]:
    decomposed = _decomposed(node.op)
    if decomposed is not None:
        return build.inline(decomposed, operands, node.location)
    return build.op(node.op, operands, node.op.results, node.location)
