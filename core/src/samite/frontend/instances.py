"""A graph with symbolic sizes at given sizes: the graph that a capture at these sizes gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.types import py_sym_types

from samite.frontend.source import line_of

__all__ = ["difference", "instantiate", "number"]


def instantiate(module: GraphModule, values: Mapping[Any, int]) -> GraphModule:
    """`module` with a size for each symbol: nodes that compute sizes are gone, all others and their `meta` are there.

    Numbers that depend on sizes are computed as Python computes them.
    """
    made, graph = _Instance(values), Graph()
    for node in module.graph.nodes:
        made.copy(node, graph)
    return GraphModule(module, graph)


def number(value: Any, values: Mapping[Any, int]) -> Any:
    """An expression over symbols at given sizes."""
    import sympy

    result = value.node.expr.xreplace({symbol: sympy.Integer(size) for symbol, size in values.items()})
    kind = int if isinstance(value, torch.SymInt) else float if isinstance(value, torch.SymFloat) else bool
    return kind(result)


class _Instance:
    def __init__(self, values: Mapping[Any, int]) -> None:
        self._values, self._mode = values, FakeTensorMode()
        self._made: dict[Node, Any] = {}
        self._numbers: dict[Any, Any] = {}
        self._fakes: dict[tuple[tuple[int, ...], torch.dtype], Tensor] = {}

    def copy(self, node: Node, graph: Graph) -> None:
        args, kwargs = self._fill(node.args), self._fill(node.kwargs)
        value = node.meta.get("val")
        if isinstance(value, py_sym_types):
            self._made[node] = self._compute(node, args, kwargs)
            return
        made = self._made[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
        made.meta = {**node.meta, **({} if value is None else {"val": self._fill(value)})}

    def _compute(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(node.target, OpOverload):  # a size of a tensor
            return self._fill(node.meta["val"])
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def _fill(self, value: Any) -> Any:
        """Nodes by their copies, symbols by their sizes, fake tensors by those of the size."""
        if isinstance(value, Node):
            return self._made[value]
        if isinstance(value, (tuple, list)):
            return type(value)(self._fill(x) for x in value) if type(value) is tuple else [self._fill(x) for x in value]
        if isinstance(value, dict):
            return {key: self._fill(x) for key, x in value.items()}
        if isinstance(value, Tensor):
            return self._fake(tuple(map(self._fill, value.shape)), value.dtype)
        if isinstance(value, py_sym_types):
            expression = value.node.expr
            if expression not in self._numbers:
                self._numbers[expression] = number(value, self._values)
            return self._numbers[expression]
        return value

    def _fake(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if (shape, dtype) not in self._fakes:
            with self._mode:
                self._fakes[shape, dtype] = torch.empty(shape, dtype=dtype)
        return self._fakes[shape, dtype]


def difference(one: GraphModule, other: GraphModule) -> str | None:
    """Where two graphs differ in what they compute, in their shapes or in their marks: the user's line, "" if it is not
    known; None if they do not. Forward ops may be numbered in another way, since some are gone from one of the graphs.
    """
    twin: dict[Node, Node] = {}
    numbers: dict[Any, Any] = {}
    nodes = list(one.graph.nodes), list(other.graph.nodes)
    for a, b in zip(*nodes, strict=False):
        twin[a] = b
        same = numbers.setdefault(_marks(a).get("op"), _marks(b).get("op")) == _marks(b).get("op")
        if not same or _picture(one, a, twin) != _picture(other, b, {}):
            return line_of(b) or line_of(a)
    return None if len(nodes[0]) == len(nodes[1]) else ""


def _picture(module: GraphModule, node: Node, twin: Mapping[Node, Node]) -> Any:
    target: Any = "" if node.op in ("placeholder", "output") else node.target
    if node.op == "get_attr":
        target = getattr(module, str(node.target)).tolist()
    marks = {key: mark for key, mark in _marks(node).items() if key != "op"}
    return node.op, target, _spell((node.args, node.kwargs, node.meta.get("val"), marks), twin)


def _marks(node: Node) -> Mapping[str, Any]:
    return node.meta.get("custom") or {}


def _spell(value: Any, twin: Mapping[Node, Node]) -> Any:
    """A value as one that compares by content and type: 1 is not True, and 0.0 not -0.0."""
    if isinstance(value, Node):
        return twin.get(value, value)
    if isinstance(value, (tuple, list)):
        return [_spell(x, twin) for x in value]
    if isinstance(value, dict):
        return {key: _spell(x, twin) for key, x in value.items()}
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    return type(value), repr(value)
