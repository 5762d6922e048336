"""Making a traced graph functional: each in-place op becomes an op and a new value.

Nearly all mutation in a training step is of whole tensors (parameters, optimizer state, statistics, gradients), and is
undone here on the graph itself, without tracing it again. What is left, writing through a view that is not all there is
of its tensor, goes the general way: a second trace under `torch.func.functionalize`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.fx.traceback
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

from samite.frontend.decompositions import table

__all__ = ["Mode", "functionalize", "functionalize_by_trace", "out_of_place"]

aten = torch.ops.aten

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


class _SecondTrace(Exception):
    """What this file cannot do: a write through a view while the rest of its tensor is still read, or one of a value
    that has to be taken apart."""


Mode = Literal["fake", "symbolic"]
"""How a graph was traced, as `make_fx` calls it."""


def functionalize(module: GraphModule, arguments: Sequence[Tensor], mode: Mode = "fake") -> GraphModule:
    """The same function without mutation; `arguments` are fakes. Mutated arguments are not copied back."""
    try:
        return GraphModule(module, _Functionalizer(module.graph).run())
    except _SecondTrace:
        return functionalize_by_trace(module, arguments, mode)


def functionalize_by_trace(module: GraphModule, arguments: Sequence[Tensor], mode: Mode = "fake") -> GraphModule:
    def again(*values: Tensor) -> object:
        with torch.fx.traceback.preserve_node_meta():
            return Interpreter(module).run(*values)

    pure = torch.func.functionalize(again, remove="mutations")
    functional = make_fx(pure, tracing_mode=mode, decomposition_table=table())(*arguments)
    for node in functional.graph.find_nodes(op="call_function", target=aten.copy_.default):
        functional.graph.erase_node(node)  # into a mutated argument, whose new value is a result
    return functional


class _Functionalizer:
    """Rebuilds a graph op by op.

    Nodes of the old graph form trees: a view's parent is the node that it is a view of, a root owns its data. The
    result of an in-place op is a view, of all, of what it wrote. `values` are the new nodes, each with the version of
    its root that it was made from: when the root is written, its views are made again at their next use.
    """

    def __init__(self, graph: Graph) -> None:
        self.old, self.new = graph, Graph()
        self.parent: dict[Node, Node] = {}
        self.family: dict[Node, list[Node]] = {}  # root -> its views
        self.whole: set[Node] = set()  # views that are all of their parent, in its shape
        self.values: dict[Node, tuple[Node, int]] = {}
        self.version: dict[Node, int] = {}
        self.last_use = {n: at for at, user in enumerate(graph.nodes) for n in user.all_input_nodes}

    def run(self) -> Graph:
        for at, node in enumerate(self.old.nodes):
            if (view := _view_of(node)) is not None:
                node.target = view
            if _is_mutable(node):
                self._write(node, at)
                continue
            if _is_view(node, self.parent):
                self._adopt(node, node.all_input_nodes[0], whole=node.target in _WHOLE)
            self.values[node] = self._emit(node), self._now(node)
        return self.new

    def _emit(self, node: Node) -> Node:
        return self.new.node_copy(node, self._read)

    def _adopt(self, node: Node, parent: Node, whole: bool) -> None:
        self.parent[node] = parent
        self.family.setdefault(self._root(node), []).append(node)
        if whole:
            self.whole.add(node)

    def _root(self, node: Node) -> Node:
        while node in self.parent:
            node = self.parent[node]
        return node

    def _now(self, node: Node) -> int:
        return self.version.get(self._root(node), 0)

    def _read(self, node: Node) -> Node:
        """The new node that holds what `node` is now."""
        value, version = self.values[node]
        if version != self._now(node):
            value = self._read(self.parent[node]) if node in self.whole else self._emit(node)
            self.values[node] = value, self._now(node)
        return value

    def _write(self, node: Node, at: int) -> None:
        target = _written(node)
        while target in self.whole:
            target = self.parent[target]
        if target in self.parent:
            self._cut(target, at)
        value = self._result(node)
        self.version[target] = self.version.get(target, 0) + 1
        self.values[target] = value, self.version[target]
        self._adopt(node, target, whole=True)
        self.values[node] = self.values[target]

    def _cut(self, view: Node, at: int) -> None:
        """Make `view` a root: nobody reads the rest of its tensor any more, or _SecondTrace."""
        root, now = self._root(view), self._now(view)
        below = [node for node in self.family[root] if self._is_below(node, view)]
        others = [root, *(node for node in self.family[root] if node not in below)]
        if any(self.last_use.get(node, -1) > at for node in others):
            raise _SecondTrace
        self._read(view)
        del self.parent[view]
        self.family[root], self.family[view] = others[1:], [node for node in below if node is not view]
        self.version[view] = now

    def _is_below(self, node: Node, view: Node) -> bool:
        while node is not view and node in self.parent:
            node = self.parent[node]
        return node is view

    def _result(self, node: Node) -> Node:
        """The value that `node` writes, in the shape and dtype of what it overwrites."""
        mapped: Any = torch.fx.map_arg((node.args, node.kwargs), self._read)
        (old, *others), kwargs = mapped
        dtype = old.meta["val"].dtype
        match _op(node)._schema.name:
            case "aten::detach_":
                return old
            case "aten::zero_":
                return self._call(node, aten.full.default, (self._shape(node, old), 0), dtype=dtype)
            case "aten::fill_" | "aten::copy_" if not isinstance(others[0], Node):
                return self._call(node, aten.full.default, (self._shape(node, old), others[0]), dtype=dtype)
            case "aten::copy_" | "aten::fill_":
                value = others[0]
            case _:
                functional = _functional(node)
                if functional in table() or functional.has_kernel_for_dispatch_key(_COMPOSITE):
                    raise _SecondTrace
                value = self._call(node, functional, _reordered(node, functional, (old, *others)), **kwargs)
        return self._like(node, value, old)

    def _like(self, node: Node, value: Node, old: Node) -> Node:
        wanted: Tensor = old.meta["val"]
        if value.meta["val"].dtype != wanted.dtype:
            value = self._call(node, aten._to_copy.default, (value,), dtype=wanted.dtype)
        if value.meta["val"].shape != wanted.shape:
            value = self._call(node, aten.expand.default, (value, self._shape(node, old)))
        return value

    def _shape(self, node: Node, of: Node) -> list[int | Node]:
        """The shape of a new node, with nodes for symbolic sizes."""
        return [
            self._call(node, aten.sym_size.int, (of, dim)) if isinstance(size, torch.SymInt) else size
            for dim, size in enumerate(of.meta["val"].shape)
        ]

    def _call(self, node: Node, op: OpOverload, args: Any, **kwargs: Any) -> Node:
        made = self.new.call_function(op, args, kwargs)
        made.meta = dict(node.meta)
        fakes: Any = torch.fx.map_arg((args, kwargs), _fake)
        with node.meta["val"].fake_mode:
            made.meta["val"] = op(*fakes[0], **fakes[1])
        return made


def _fake(node: Node) -> Any:
    return node.meta["val"]


def _op(node: Node) -> OpOverload:
    assert isinstance(node.target, OpOverload)
    return node.target


_WHOLE = (aten.detach.default, aten.alias.default, aten.lift_fresh.default)


def _is_mutable(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _view_of(node: Node) -> OpOverload | None:
    """The view that an op like `squeeze_` is: a trace knows the tensor as its result from then on."""
    if not _is_mutable(node) or torch.Tag.inplace_view not in _op(node).tags:
        return None
    view = _functional(node)
    if not any(a.alias_info is not None and not _writes(a) for a in view._schema.arguments):
        raise _SecondTrace  # `resize_`
    return view


def _is_view(node: Node, views: Mapping[Node, Node]) -> bool:
    if isinstance(node.target, OpOverload):
        return any(argument.alias_info is not None for argument in node.target._schema.arguments)
    return node.target is operator.getitem and node.args[0] in views


def _written(node: Node) -> Node:
    """What an in-place op writes: its first argument, and nothing else."""
    first, *others = _op(node)._schema.arguments
    target = node.args[0] if node.args else None
    if not isinstance(target, Node) or not _writes(first) or any(_writes(other) for other in others):
        raise _SecondTrace
    return target


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def out_of_place(op: OpOverload) -> OpOverload | None:
    """The form of an in-place op that gives a new tensor: the same name without the underscore, with the same
    arguments; None if there is none."""
    schema = op._schema
    namespace, name = schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    if not name.endswith("_") or packet is None:
        return None
    overloads = [getattr(packet, key) for key in packet.overloads()]
    # Overloads have names of their own: `pow_.Scalar` is not `pow.Scalar`, which takes its first argument as a number.
    wanted = {_spelled(argument) for argument in schema.arguments}
    found = [o for o in overloads if {_spelled(argument) for argument in o._schema.arguments} == wanted]
    same = [o for o in found if o._overloadname == schema.overload_name]
    return next(iter(same or found), None)


def _functional(node: Node) -> OpOverload:
    found = out_of_place(_op(node))
    if found is None:
        raise _SecondTrace
    return found


def _reordered(node: Node, functional: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Positional arguments of an in-place op in the order of its other form: `polygamma` has its tensor last."""
    given = dict(zip((a.name for a in _op(node)._schema.arguments), args, strict=False))
    return tuple(given[a.name] for a in functional._schema.arguments if a.name in given)


def _spelled(argument: Any) -> tuple[str, str, bool]:
    return argument.name, str(argument.type), argument.has_default_value()
