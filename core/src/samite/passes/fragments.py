"""Pieces of IR that passes insert, traced once from torch code and cached: reshards, masks, ops on shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch

from samite.errors import RuleError, VerifyError
from samite.ir.context import TensorType
from samite.ir.graph import Argument, Constant, Graph, ListOf, Node, Op, Slot, intern_op
from samite.ir.importer import trace
from samite.layout import Dim, Layout, Step, identity, plan
from samite.rules.binding import bind
from samite.rules.planning import plan_between
from samite.rules.shards import Shards, along, valid_mask

__all__ = ["LocalOp", "local_op", "local_type", "reshard_graph"]

MeshItems = tuple[tuple[str, int], ...]
"""A mesh as a hashable key."""


def local_type(type: TensorType, layout: Layout, mesh: Mapping[str, int]) -> TensorType:
    """What a rank holds of a value."""
    return TensorType(layout.local_shape(mesh), type.dtype)


@cache
def reshard_graph(src: Layout, dst: Layout, dtype: str, mesh_items: MeshItems) -> Graph:
    """The collectives and local steps from one layout to another.

    Raises VerifyError if a rank would hold a larger buffer than the plan says: a conversion must not surprise memory.
    """
    mesh = dict(mesh_items)
    way = plan(src, dst, mesh)
    steps = way.steps

    def run(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = _take(x, step, dtype, mesh)
        # Cutting off padding leaves strides that some kernels mistake (the backward of layer norm and of max pools).
        return _shaped(x, dst.local_shape(mesh)).contiguous()

    graph = trace(run, [TensorType(src.local_shape(mesh), dtype)])
    planned = max(way.peak(mesh), src.local_size(mesh), dst.local_size(mesh), 1)  # a scalar is on the way anywhere
    held = max(prod(type.shape) for type in graph.types)
    if held > planned:
        raise VerifyError(f"a reshard of {src} to {dst} holds {held} elements on a rank, its plan says {planned}")
    return graph


def _shaped(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return x if tuple(x.shape) == tuple(shape) else x.reshape(shape)


def _take(x: torch.Tensor, step: Step, dtype: str, mesh: Mapping[str, int]) -> torch.Tensor:
    """One step, as `samite.layout.Step` defines it."""
    ops, axis, parts = torch.ops.samite, step.axis, mesh[step.axis]
    source, target = step.source, step.target
    if step.verb not in ("all_reduce", "owe"):
        x = _shaped(x, step.slots(mesh))
    if target is not None and (missing := parts * step.chunk(mesh) - x.shape[target]):
        x = torch.nn.functional.pad(x, [0, 0] * (x.ndim - 1 - target) + [0, missing])
    match step.verb:
        case "shard":
            x = ops.shard(x, axis, target, parts)
        case "owe":
            x = torch.where(ops.axis_index(axis) == 0, x, torch.full((), identity(step.kind, dtype), dtype=x.dtype))
        case "all_reduce":
            x = ops.all_reduce(x, axis, step.kind)
        case "reduce_scatter":
            x = ops.reduce_scatter(x, axis, target, step.kind, parts)
        case "all_gather":
            x = ops.all_gather(x, axis, source, parts)
        case "all_to_all":
            x = ops.all_to_all(x, axis, target, source, parts)
    if source is not None and x.shape[source] != step.gathered(mesh):
        x = x.narrow(source, 0, step.gathered(mesh))
    return x


@dataclass(frozen=True, eq=False)
class LocalOp:
    """How an op runs on shards: `masks` on its operands, then `body`, or the op itself where `body` is None."""

    types: tuple[TensorType, ...]
    masks: tuple[tuple[int, Graph], ...]
    body: Graph | None


@cache
def local_op(op: Op, needs: tuple[Layout, ...], results: tuple[Layout, ...], mesh_items: MeshItems) -> LocalOp:
    """Raises VerifyError if the op's rule has no plan with these layouts."""
    mesh = dict(mesh_items)
    bound = bind(op)
    made = plan_between(bound, needs, results, mesh)
    if made is None:
        have = ", ".join(map(str, needs))
        raise VerifyError(f"{op}: its rule takes no operands {have} to {', '.join(map(str, results))}")
    types = tuple(local_type(t, r, mesh) for t, r in zip(op.results, results, strict=True))
    locals_ = [local_type(t, n, mesh) for t, n in zip(op.operands, needs, strict=True)]
    masks = tuple(
        (m.operand, _mask_graph(made.needs[m.operand].dims[m.dim], m.dim, m.fill, locals_[m.operand], mesh_items))
        for m in made.masks
    )
    body = _body(Shards(bound, made, mesh), locals_, types)
    return LocalOp(types, masks, body)


@cache
def _mask_graph(factors: Dim, dim: int, fill: float, type: TensorType, mesh_items: MeshItems) -> Graph:
    """`fill` where dim `dim`, laid out by `factors`, is padding."""

    def run(x: torch.Tensor) -> torch.Tensor:
        valid = along(valid_mask(factors, dict(mesh_items)), dim, x.ndim)
        return torch.where(valid, x, torch.full((), fill, dtype=x.dtype))

    return trace(run, [type])


def _view_graph(source: TensorType, target: TensorType) -> Graph:
    """Views are many, and written down faster than traced."""
    sizes = ListOf("!torch.list<int>", tuple(Constant.of(n) for n in target.shape))
    op = intern_op("aten.view", (Slot(0), sizes), (source,), (target,))
    return Graph("view", (Argument(source),), [Node(op, (0,), (1,), None)], (1,), (-1,), [source, target])


def _body(shards: Shards, operands: list[TensorType], types: tuple[TensorType, ...]) -> Graph | None:
    bound, given = shards.bound, shards.plan.given
    if bound.rule.view is not None:
        if all(local == whole for local, whole in zip(types, bound.op.results, strict=True)):
            return None
        return _view_graph(operands[0], types[0])
    grown = [f for letter, f in bound.expanded.items() if letter in given]
    function: Any = grown[0] if grown else bound.rule.local
    if function is None or not given:
        return None
    body = trace(lambda *x: shards.call(function, x), operands)
    made = tuple(body.types[r] for r in body.returns)
    if made != types:
        raise RuleError(f"{bound.op}: {function.__name__} gives {made} where its rule says {types}")
    return body
