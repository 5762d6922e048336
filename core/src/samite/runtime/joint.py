"""Collectives over the tensors of all ranks at once: their definition, and how simulated ranks communicate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from samite.mesh import Mesh

__all__ = ["REDUCE", "compute"]

REDUCE: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}
"""The dialect's reductions of two terms, which take `out`. On bool, sum is `or` and prod is `and`."""


def compute(
    verb: str, tensors: Sequence[torch.Tensor], axes: Sequence[str], arguments: Sequence[Any], mesh: Mesh
) -> list[torch.Tensor]:
    """Every rank's result of one collective, from every rank's operand, in rank order.

    Terms are reduced in the order of the group, so results are deterministic. Ranks of a group may be given one tensor.
    """
    results: list[Any] = [None] * mesh.size
    for group in mesh.groups(axes):
        for rank, result in zip(group, _VERBS[verb]([tensors[rank] for rank in group], *arguments), strict=True):
            results[rank] = result
    return results


def _reduce(xs: Sequence[torch.Tensor], reduce_type: str) -> torch.Tensor:
    total = xs[0]
    for x in xs[1:]:
        total = REDUCE[reduce_type](total, x)
    return total


def _all_reduce(xs: Sequence[torch.Tensor], reduce_type: str, *_: Any) -> list[torch.Tensor]:
    """By whatever algorithm."""
    return [_reduce(xs, reduce_type)] * len(xs)


def _all_gather(xs: Sequence[torch.Tensor], dim: int) -> list[torch.Tensor]:
    return [torch.cat(list(xs), dim)] * len(xs)


def _reduce_scatter(xs: Sequence[torch.Tensor], dim: int, reduce_type: str) -> list[torch.Tensor]:
    return [part.contiguous() for part in _reduce(xs, reduce_type).tensor_split(len(xs), dim)]


def _all_to_all(xs: Sequence[torch.Tensor], split_dim: int, concat_dim: int) -> list[torch.Tensor]:
    cut = [x.tensor_split(len(xs), split_dim) for x in xs]
    return [torch.cat(parts, concat_dim) for parts in zip(*cut, strict=True)]


def _permute(xs: Sequence[torch.Tensor], pairs: Sequence[tuple[int, int]]) -> list[torch.Tensor]:
    sources = {target: source for source, target in pairs}
    return [xs[sources[i]] if i in sources else torch.zeros_like(x) for i, x in enumerate(xs)]


_VERBS: dict[str, Callable[..., list[torch.Tensor]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
}
