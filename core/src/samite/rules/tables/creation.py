"""Ops that make values from literals: the result takes whatever layout its users want."""

from __future__ import annotations

from typing import Any

import torch

from samite.rules.language import rule
from samite.rules.shards import Shards


def shaped(op: str) -> Any:
    """The same op with the local size."""

    def make(s: Shards, **literals: Any) -> torch.Tensor:
        made = getattr(torch.ops.aten, op)
        rest = {k: v for k, v in literals.items() if k in ("dtype",) and v is not None}
        fill = [literals["fill_value"]] if "fill_value" in literals else []
        dtype = getattr(torch, s.bound.op.results[0].dtype)
        return made(s.result_shape(), *fill, **{**rest, "dtype": dtype})

    return make


def arange(s: Shards, end: float, start: float = 0, step: float = 1, **_: Any) -> torch.Tensor:
    return (s.positions("n") * step + start).to(getattr(torch, s.bound.op.results[0].dtype))


def uniform(s: Shards, seed: torch.Tensor, op: int, **_: Any) -> torch.Tensor:
    """The numbers of this shard's elements: element i of the global result has number i on every mesh."""
    shape = s.bound.op.results[0].shape
    index = torch.zeros((), dtype=torch.int64)
    for dim, letter in enumerate(s.letters("a")):
        stride = 1
        for size in shape[dim + 1 :]:
            stride *= size
        index = index[..., None] + s.positions(letter) * stride
    return torch.ops.samite.philox_uniform_at(seed, op, index)


for name in ("full", "zeros", "ones"):
    rule(name, " -> *a", indexes="a", local=shaped(name))
rule("empty.memory_format", " -> *a", indexes="a", local=shaped("empty"))
rule("arange", " -> n", indexes="n", local=arange)
rule("arange.start", " -> n", indexes="n", local=arange)
rule("arange.start_step", " -> n", indexes="n", local=arange)
rule("scalar_tensor", " -> ")
rule("prim.NumToTensor.Scalar", " -> ")
rule("vtensor.literal", lambda op: " -> " + (" ".join(f"D{i}" for i in range(len(op.results[0].shape))) or "."))
rule("samite.philox_uniform", ". -> *a", indexes="a", local=uniform)
rule("samite.philox_uniform_at", "., *a -> *a")
