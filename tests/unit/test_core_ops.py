"""The rules are complete over core ATen: each of its ops has one, or is taken apart before rules are asked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from samite.frontend.decompositions import table
from samite.ir.strides import STRIDED
from samite.passes.normalise import DECOMPOSITIONS
from samite.rules import rules

RANDOM = "rand randn randperm native_dropout"
"""Drawn by their global index instead: frontend/random_ops.py."""
DEPENDENT = "nonzero _local_scalar_dense"
"""Their result, or its shape, is a matter of data; a capture refuses them with the user's line."""
COMPOSITE = "atan2.out var.dim upsample_bilinear2d.vec upsample_nearest2d.vec avg_pool1d adaptive_avg_pool1d"
"""A trace sees what they are made of."""
STORAGE = "resize_"
"""A functional trace has no storage to change: frontend/functionalizing.py traces the shape that comes of it."""
SIZES = "sym_numel sym_size.int sym_storage_offset sym_stride.int sym_is_contiguous"
"""They give numbers, and no tensors."""


def overloads() -> Iterator[OpOverload]:
    """All of ATen; `dir(torch.ops.aten)` would give those that somebody asked for before."""
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, name = qualified.partition("::")
        if namespace == "aten":
            packet, _, overload = name.partition(".")
            yield getattr(getattr(torch.ops.aten, packet), overload or "default")


def spelled(op: OpOverload) -> str:
    packet = op._schema.name.replace("::", ".")
    return packet if op._overloadname == "default" else f"{packet}.{op._overloadname}"


def test_core_ops_have_rules() -> None:
    core = {spelled(op): op for op in overloads() if torch.Tag.core in op.tags}
    assert len(core) > 180
    apart = {spelled(op) for op in (*table(), *STRIDED)} | set(DECOMPOSITIONS)
    others = {f"aten.{name}" for name in f"{RANDOM} {DEPENDENT} {COMPOSITE} {STORAGE} {SIZES}".split()}
    assert set(core) - set(rules()) - apart - others == set()
    assert not others & set(rules()), "what has a rule needs no excuse"


def calling(op: OpOverload, args: tuple[Any, ...], x: torch.Tensor) -> torch.Tensor:
    return op(x, *args)


def test_what_is_made_of_others_is_seen_so() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    image = torch.rand(2, 3, 4, 4)
    for op, args in (
        (torch.ops.aten.var.dim, ([1],)),
        (torch.ops.aten.upsample_nearest2d.vec, ([8, 8], None)),
        (torch.ops.aten.upsample_bilinear2d.vec, ([8, 8], False, None)),
        (torch.ops.aten.avg_pool1d.default, ([2],)),
        (torch.ops.aten.adaptive_avg_pool1d.default, ([2],)),
    ):
        x = image[0] if "1d" in spelled(op) else image
        traced = make_fx(partial(calling, op, args), decomposition_table=table())(x)
        ops = {spelled(node.target) for node in traced.graph.nodes if isinstance(node.target, OpOverload)}
        assert ops
        assert ops <= set(rules()) | set(DECOMPOSITIONS)
