"""Tidying the graph of a capture: what is left is functional, device-neutral ATen and samite ops."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.types import py_sym_types

from samite.errors import CaptureError
from samite.frontend.source import line_of
from samite.ir.regions import is_control_flow

__all__ = ["set_outputs", "tidy"]

aten = torch.ops.aten

_SAME = (aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default, aten.lift_fresh.default)
_DEVICE = ("device", "layout", "pin_memory", "non_blocking")
_STRIDED = (aten.view.default, aten._unsafe_view.default, aten.as_strided.default)


_SPELLED: dict[Any, Any] = {aten._unsafe_view.default: aten.view.default}
"""Ops that differ in what autograd makes of them, which has been."""


def tidy(module: GraphModule) -> None:
    """Rewrite in place. Raises CaptureError for an op that mutates or draws random numbers on its own.

    Nodes that compute symbolic sizes stay, where an op needs them. So it is done to what control flow calls.
    """
    graph = module.graph
    for region in module.children():
        if isinstance(region, GraphModule):
            tidy(region)
    for node in graph.find_nodes(op="call_function", target=torch.ops.profiler._record_function_exit._RecordFunction):
        graph.erase_node(node)
    for node in list(graph.nodes):
        if node.op == "get_attr":
            _inline_scalar(module, node)
        if node.op != "call_function":
            continue
        node.target = _spelled(node.target)
        if getattr(node.target, "namespace", "") == "profiler":
            graph.erase_node(node)
        elif node.target is aten.copy_.default:  # into a mutated argument, whose new value is a result
            _forward(node, node.args[1])
        elif _is_cast_number(node):
            _write_out_number(node)
        elif node.target in _SAME or _is_needless_clone(node) or _is_whole_slice(node):
            _forward(node, node.args[0])
        else:
            _erase_device(node)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    used = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    for name, _ in list(module.named_children()):
        if name not in used:
            delattr(module, name)
    for node in graph.nodes:
        if node.op == "call_function":
            _check(node)
        node.meta = {k: node.meta[k] for k in ("val", "custom") if k in node.meta}
    graph.lint()
    module.recompile()


def _spelled(target: Any) -> Any:
    """The op of this meaning that rules know. In a functional graph a copy of a view is that view."""
    if isinstance(target, torch._ops.OpOverload) and torch.Tag.view_copy in target.tags:
        view = getattr(aten, target._opname.removesuffix("_copy"))
        target = getattr(view, target._overloadname)
    return _SPELLED.get(target, target)


def _forward(node: Node, value: Any) -> None:
    node.replace_all_uses_with(value)
    node.graph.erase_node(node)


def _is_whole_slice(node: Node) -> bool:
    """`x[:, 0]` takes all of dim 0 first, but only where that dim is a symbol: an int tells torch that this is `x`."""
    if node.target is not aten.slice.Tensor:
        return False
    named: dict[str, Any] = dict(zip(("x", "dim", "start", "end", "step"), node.args, strict=False)) | node.kwargs
    whole = named.get("start") in (None, 0) and named.get("end") in (None, sys.maxsize)
    return whole and named.get("step", 1) == 1


def _is_needless_clone(node: Node) -> bool:
    """A clone is for strides alone: only views look at them."""
    return node.target is aten.clone.default and not any(user.target in _STRIDED for user in node.users)


def _is_cast_number(node: Node) -> bool:
    return node.target is aten._to_copy.default and not isinstance(node.args[0], Node)


def _write_out_number(node: Node) -> None:
    """`torch.where(mask, x, 0.5)` under vmap casts a number: that is a constant."""
    with node.graph.inserting_before(node):
        full = node.graph.call_function(aten.full.default, ([], node.args[0]), {"dtype": node.meta["val"].dtype})
    full.meta = dict(node.meta)
    _forward(node, full)


def _erase_device(node: Node) -> None:
    if any(name in node.kwargs for name in _DEVICE):
        node.kwargs = {k: v for k, v in node.kwargs.items() if k not in _DEVICE}
    if node.target is aten._to_copy.default and node.kwargs.get("dtype") in (None, _dtype(node.args[0])):
        _forward(node, node.args[0])


def _dtype(node: Any) -> torch.dtype:
    return node.meta["val"].dtype


def _inline_scalar(module: GraphModule, node: Node) -> None:
    """`torch.tensor(0.5)` in the function is a constant of the graph; a 0-d one is written out."""
    value = getattr(module, str(node.target))
    if not isinstance(value, Tensor) or value.dim():
        return
    with node.graph.inserting_before(node):
        full = node.graph.call_function(aten.full.default, ([], value.item()), {"dtype": value.dtype})
    full.meta = dict(node.meta)
    _forward(node, full)


def _check(node: Node) -> None:
    target = node.target
    if isinstance(node.meta.get("val"), py_sym_types):
        return
    if not isinstance(target, torch._ops.OpOverload):
        if getattr(target, "__name__", "") == "getitem" or is_control_flow(target):
            return
        raise CaptureError(f"{target} cannot be part of a program", where=line_of(node), help="use torch.where")
    if torch.Tag.nondeterministic_seeded in target.tags and not _drops_nothing(node):
        raise CaptureError(
            f"random op {target} has no counter-based form",
            where=line_of(node),
            help="draw with torch.rand, randn, bernoulli or dropout, or pass the numbers as an argument",
        )
    if any(x.layout != torch.strided for x in _tensors(node)):
        raise CaptureError(f"{target} makes a sparse tensor", where=line_of(node), help="compute with dense ones")
    if target._schema.is_mutable:
        raise CaptureError(
            f"{target} changes its argument in a way that cannot be captured",
            where=line_of(node),
            help="use its out-of-place form",
        )


def _tensors(node: Node) -> list[Tensor]:
    value = node.meta.get("val")
    return [x for x in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(x, Tensor)]


def _drops_nothing(node: Node) -> bool:
    """Whether a node is attention without dropout."""
    op: Any = node.target
    if "scaled_dot_product" not in op._opname:
        return False
    names = [argument.name for argument in op._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return not given.get("dropout_p", 0.0)


def set_outputs(module: GraphModule, kept: Sequence[int]) -> None:
    """Keep the results with these positions."""
    output = module.graph.output_node()
    values: Any = output.args[0]
    output.args = (tuple(values[i] for i in kept),)
