"""Control flow: torch's higher-order ops as ops of the dialect with regions.

| torch | dialect | regions | operands |
|---|---|---|---|
| `torch.cond` | `dist.cond` | then, otherwise | predicate, then what both take |
| `while_loop` | `dist.while` | condition, body | `carried`, then the same for every iteration |
| `scan` | `dist.scan` | body | `carried`, `sliced` along dim 0, then the same for every iteration |
| `map` | `dist.scan` | body | none carried: iterations depend on nothing but their slices |

A region is isolated: it sees its arguments and nothing else. So it is a `Graph` like a function's, and what a pass does
to a function it can do to a region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from samite.ir.graph import Graph, Node, Op, intern_op

__all__ = [
    "Call",
    "all_nodes",
    "call_of",
    "changed_regions",
    "has_regions",
    "is_control_flow",
    "split_operands",
    "with_regions",
]

_NAMES = {"cond": "dist.cond", "while_loop": "dist.while", "scan": "dist.scan", "map_impl": "dist.scan"}


@dataclass(frozen=True)
class Call:
    """A higher-order op of an FX graph as the dialect has it."""

    name: str
    functions: tuple[fx.GraphModule, ...]
    operands: tuple[fx.Node, ...]
    attributes: dict[str, int]


def is_control_flow(target: object) -> bool:
    """Whether the target of an FX node is one of torch's ops of control flow."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target.name() in _NAMES


def call_of(node: fx.Node) -> Call:
    """What an FX node of control flow calls, on what."""
    op: Any = node.target
    args: list[Any] = list(node.args)
    match op.name():
        case "cond":
            predicate, then, otherwise, operands = args
            functions, given, attributes = (then, otherwise), (predicate, *operands), {}
        case "while_loop":
            condition, body, carried, others = args
            functions, given, attributes = (condition, body), (*carried, *others), {"carried": len(carried)}
        case "scan":
            body, carried, sliced, others = args
            functions, given = (body,), (*carried, *sliced, *others)
            attributes = {"carried": len(carried), "sliced": len(sliced)}
        case _:
            body, sliced, others = args
            functions, given, attributes = (body,), (*sliced, *others), {"carried": 0, "sliced": len(sliced)}
    module: Any = node.graph.owning_module
    return Call(_NAMES[op.name()], tuple(getattr(module, str(f.target)) for f in functions), given, attributes)


def has_regions(graph: Graph) -> bool:
    return any(node.op.regions for node in graph.nodes)


def split_operands(op: Op, operands: Sequence[Any]) -> tuple[list[Any], ...]:
    """Operands by what they are: predicate and inputs of a `cond`, carried values and others of a `while`, carried and
    sliced values and others of a `scan`."""
    ends = {"dist.cond": (1,), "dist.while": ("carried",), "dist.scan": ("carried", "sliced")}[op.name]
    groups: list[list[Any]] = []
    rest = list(operands)
    for end in ends:
        count = end if isinstance(end, int) else op.literals[end]
        groups.append(rest[:count])
        rest = rest[count:]
    return (*groups, rest)


def all_nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of a function, and after each op those of its regions."""
    for node in graph.nodes:
        yield node
        for region in node.op.regions:
            yield from all_nodes(region)


def changed_regions(op: Op, change: Callable[[Graph], Graph]) -> Op:
    """The op with `change` made to its regions, in order."""
    regions = tuple(map(change, op.regions))
    return intern_op(op.name, op.form, op.operands, op.results, op.attributes, regions)


def with_regions(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """The graph with `change` made to the regions of its ops."""
    if not has_regions(graph):
        return graph
    nodes = [replace(n, op=changed_regions(n.op, change)) if n.op.regions else n for n in graph.nodes]
    return replace(graph, nodes=nodes)
