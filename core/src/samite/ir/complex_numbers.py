"""Complex literals, for which the torch dialect has no word."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from samite.errors import CaptureError

__all__ = ["write_out_complex"]

aten = torch.ops.aten
_WITH_TENSOR = {"Scalar": "Tensor", "Tensor_Scalar": "Tensor_Tensor"}
"""Overloads that take a number where their sibling takes a tensor."""


def write_out_complex(graph: torch.fx.Graph) -> None:
    """Put `aten.complex` of two numbers where an op takes a complex literal that may be a tensor, or fills one with it.

    Raises CaptureError for a complex literal anywhere else.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or not any(isinstance(a, complex) for a in (*node.args, *node.kwargs.values())):
            continue
        with graph.inserting_before(node):
            if node.target is aten.full.default:
                made = _filled(graph, node, node.args[0], node.args[1])
                node.replace_all_uses_with(made)
                graph.erase_node(node)
            else:
                node.target = _with_tensor(node.target)
                node.args = tuple(_operand(graph, node, i, a) for i, a in enumerate(node.args))
                for value in node.kwargs.values():
                    if isinstance(value, complex):
                        _refuse(node, value)


def _with_tensor(target: Any) -> Any:
    sibling = _WITH_TENSOR.get(target._overloadname, "")
    return getattr(target.overloadpacket, sibling) if sibling in target.overloadpacket.overloads() else target


def _operand(graph: torch.fx.Graph, node: torch.fx.Node, position: int, value: Any) -> Any:
    if not isinstance(value, complex):
        return value
    target: Any = node.target
    if "Tensor" not in str(target._schema.arguments[position].type):
        _refuse(node, value)
    return _filled(graph, node, [], value)


def _refuse(node: torch.fx.Node, value: complex) -> NoReturn:
    raise CaptureError(
        f"{node.target} takes the complex number {value}",
        help="pass a tensor: torch.tensor(..., dtype=torch.complex64)",
    )


def _filled(graph: torch.fx.Graph, node: torch.fx.Node, size: Any, value: complex) -> torch.fx.Node:
    """A tensor of `node`'s dtype full of a complex number."""
    like, marks = node.meta["val"], {key: node.meta[key] for key in ("custom",) if key in node.meta}
    parts: list[torch.fx.Node] = []
    with like.fake_mode:
        for number in (value.real, value.imag):
            part = graph.call_function(aten.full.default, (size, number), {"dtype": like.dtype.to_real()})
            parts.append(part)
            part.meta = {**marks, "val": aten.full.default(size, number, dtype=like.dtype.to_real())}
        made = graph.call_function(aten.complex.default, tuple(parts))
        made.meta = {**marks, "val": aten.complex.default(*(part.meta["val"] for part in parts))}
    return made
