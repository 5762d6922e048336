"""Ops that make values from literals: the result takes whatever layout its users want."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samite.ir.graph import Op
from samite.rules.language import rule
from samite.rules.shards import Shards


def full(s: Shards, *, fill_value: float, **_: Any) -> torch.Tensor:
    return torch.full(s.result_shape(), fill_value, dtype=s.dtype())


def constant(value: float) -> Callable[..., torch.Tensor]:
    def make(s: Shards, **_: Any) -> torch.Tensor:
        return torch.full(s.result_shape(), value, dtype=s.dtype())

    return make


def empty(s: Shards, **_: Any) -> torch.Tensor:
    return torch.empty(s.result_shape(), dtype=s.dtype())


def arange(s: Shards, *, end: float, start: float = 0, step: float = 1, **_: Any) -> torch.Tensor:
    return (s.positions("n") * step + start).to(s.dtype())


def eye(s: Shards, **_: Any) -> torch.Tensor:
    return (s.positions("m")[:, None] == s.positions("n")).to(s.dtype())


def uniform(s: Shards, seed: torch.Tensor, *, op: int, **_: Any) -> torch.Tensor:
    """The numbers of this shard's elements: element i of the global result has number i on every mesh."""
    index = torch.zeros((), dtype=torch.int64)
    for letter in s.letters("a"):
        index = index[..., None] * s.size(letter) + s.positions(letter)
    return torch.ops.samite.philox_uniform_at(seed, op, index)


def literal(op: Op) -> str:
    """A tensor in the program's text. Every rank has the text."""
    return " -> " + (" ".join(f"D{i}" for i in range(len(op.results[0].shape))) or ".")


rule("full", " -> *a", indexes="a", local=full)
rule("zeros", " -> *a", indexes="a", local=constant(0))
rule("ones", " -> *a", indexes="a", local=constant(1))
rule("empty.memory_format", " -> *a", indexes="a", local=empty)
rule("arange", " -> n", indexes="n", local=arange)
rule("arange.start", " -> n", indexes="n", local=arange)
rule("arange.start_step", " -> n", indexes="n", local=arange)
rule("eye", " -> m n", indexes="m n", local=eye)
rule("eye.m", " -> m n", indexes="m n", local=eye)
rule("tril_indices", " -> T N")
rule("triu_indices", " -> T N")
rule("scalar_tensor", " -> .")
rule("prim::NumToTensor.Scalar", " -> .")
rule("vtensor::literal", literal)
rule("samite::philox_uniform", ". -> *a", indexes="a", local=uniform)
rule("samite::philox_uniform_at", "., *a -> *a")
