"""Ops on storage, as ops on elements: `as_strided` and its kin address a tensor's elements in the order in which memory
has them. Only the traced graph knows that order, so they are written out before it is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from samite.errors import CaptureError

__all__ = ["STRIDED", "write_out_strides"]

aten = torch.ops.aten


def write_out_strides(graph: torch.fx.Graph) -> None:
    """Replace the ops on storage of a functional graph. Nodes need a fake tensor in meta["val"].

    Raises CaptureError where one of them leaves the elements of its tensor.
    """
    for node in list(graph.nodes):
        formula = STRIDED.get(node.target) if node.op == "call_function" else None
        if formula is not None:
            with graph.inserting_before(node):
                node.replace_all_uses_with(_inlined(graph, node, formula))
            graph.erase_node(node)


def _inlined(graph: torch.fx.Graph, node: torch.fx.Node, formula: Callable[..., Tensor]) -> torch.fx.Node:
    """The nodes of `formula` in place of `node`."""
    from torch.fx.experimental.proxy_tensor import make_fx

    tensors = [a for a in node.args if isinstance(a, torch.fx.Node)]
    literals = node.args[len(tensors) :]
    fakes = [a.meta["val"] for a in tensors]
    with node.meta["val"].fake_mode:
        traced = make_fx(lambda *x: formula(*x, *literals, **node.kwargs))(*fakes)
    made = dict(zip(traced.graph.find_nodes(op="placeholder"), tensors, strict=True))
    for inner in traced.graph.nodes:
        if inner.op == "output":
            return made[inner.args[0]]
        if inner.op != "placeholder":
            made[inner] = graph.node_copy(inner, made.__getitem__)
            made[inner].meta = {k: v for k, v in {**node.meta, **inner.meta}.items() if k in ("val", "custom")}
    raise AssertionError("a traced function has a result")


def _stored(x: Tensor) -> tuple[Tensor, list[int]]:
    """The elements of a tensor in the order of its storage, and its dims in that order."""
    order = sorted(range(x.dim()), key=lambda d: (-x.stride(d), -x.shape[d]))
    return x.permute(order).reshape(-1), order


def _addresses(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Tensor:
    """int64, flat: which stored element of `x` each element of the strided tensor is."""
    first = 0 if offset is None else int(offset - x.storage_offset())
    last = first + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    dense = torch.empty_permuted(x.shape, sorted(range(x.dim()), key=lambda d: (-x.stride(d), -x.shape[d])))
    if (0 not in size and not 0 <= first <= last < x.numel()) or (x.numel() and dense.stride() != x.stride()):
        raise CaptureError(
            f"as_strided of a tensor of shape {tuple(x.shape)} reaches what is not an element of it",
            help="make the tensor contiguous first, and address its own elements",
        )
    address = torch.full(list(size), first, dtype=torch.int64)
    for d, (n, step) in enumerate(zip(size, stride, strict=True)):
        shape = [n if i == d else 1 for i in range(len(size))]
        address = address + (torch.arange(n) * step).view(shape)
    return address.reshape(-1)


def _as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Tensor:
    return _stored(x)[0].index_select(0, _addresses(x, size, stride, offset)).view(list(size))


def _as_strided_scatter(
    x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Tensor:
    flat, order = _stored(x)
    made = flat.index_put([_addresses(x, size, stride, offset)], src.reshape(-1))
    return made.view([x.shape[d] for d in order]).permute([order.index(d) for d in range(x.dim())])


STRIDED: dict[Any, Callable[..., Tensor]] = {
    aten.as_strided.default: _as_strided,
    aten.as_strided_copy.default: _as_strided,
    aten.as_strided_scatter.default: _as_strided_scatter,
}
"""By op what it is on elements."""
