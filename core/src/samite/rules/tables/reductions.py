"""Reductions, and the ops that need a whole dim at once."""

from __future__ import annotations

from typing import Any

import torch

from samite.rules.language import rule
from samite.rules.shards import Shards


def softmax(s: Shards, x: torch.Tensor, dim: int, half_to_float: bool = False, log: bool = False) -> torch.Tensor:
    """max and sum over the split dim by two small all-reduces."""
    x = s.mask(x.float() if half_to_float else x, "d", dim, -torch.inf)
    shifted = x - s.all_reduce(x.amax(dim, keepdim=True), "d", "max")
    exp = shifted.exp()
    total = s.all_reduce(exp.sum(dim, keepdim=True), "d")
    return shifted - total.log() if log else exp / total


def log_softmax(s: Shards, x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
    return softmax(s, x, dim, half_to_float, log=True)


def softmax_backward(s: Shards, grad: torch.Tensor, output: torch.Tensor, dim: int, **_: Any) -> torch.Tensor:
    product = grad * output
    total = s.all_reduce(s.mask(product, "d", dim, 0).sum(dim, keepdim=True), "d")
    return product - output * total


def log_softmax_backward(s: Shards, grad: torch.Tensor, output: torch.Tensor, dim: int, **_: Any) -> torch.Tensor:
    total = s.all_reduce(s.mask(grad, "d", dim, 0).sum(dim, keepdim=True), "d")
    return grad - output.exp() * total


def cumsum(s: Shards, x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    """The local scan, plus the totals of the blocks before this one."""
    x = s.mask(x, "d", dim, 0)
    here = x.cumsum(dim)
    (factor,) = s.factors("d")
    before = torch.zeros((), dtype=torch.int64)
    for axis in factor.axes:
        before = before * s.mesh[axis] + torch.ops.samite.axis_index(axis)
    totals = s.all_gather(x.sum(dim, keepdim=True), "d", dim)
    earlier = torch.arange(totals.shape[dim]) < before
    shape = [-1 if i == dim % x.ndim else 1 for i in range(x.ndim)]
    return here + torch.where(earlier.view(shape), totals, 0).sum(dim, keepdim=True)


rule("sum.dim_IntList", "*a *r -> *a", sum="r", at="dim", linear="all")
rule("sum", "*r -> ", sum="r", linear="all")
rule("prod", "*r -> ", prod="r")
rule("prod.dim_int", "*a *r -> *a", prod="r", at="dim")
rule("amax", "*a *r -> *a", max="r", at="dim")
rule("amin", "*a *r -> *a", min="r", at="dim")
rule("max", "*r -> ", max="r")
rule("min", "*r -> ", min="r")
rule("any", "*r -> ", max="r")
rule("any.dim", "*a *r -> *a", max="r", at="dim")
rule("all", "*r -> ", min="r")
rule("all.dim", "*a *r -> *a", min="r", at="dim")

rule("_softmax", "*a d -> *a d", at="dim", expand={"d": softmax})
rule("_log_softmax", "*a d -> *a d", at="dim", expand={"d": log_softmax})
rule("_softmax_backward_data", "*a d, *a d -> *a d", at="dim", linear="0", expand={"d": softmax_backward})
rule("_log_softmax_backward_data", "*a d, *a d -> *a d", at="dim", linear="0", expand={"d": log_softmax_backward})
rule("cumsum", "*a d -> *a d", at="dim", plain="d", linear="all", expand={"d": cumsum})
# Places along the dim matter, so it is whole.
rule("argmax", "*a D -> *a", at="dim")
rule("argmin", "*a D -> *a", at="dim")
rule("topk", "*a D -> *a k, *a k", at="dim")
rule("sort", "*a D -> *a D, *a D", at="dim")
rule("max.dim", "*a D -> *a, *a", at="dim")
rule("min.dim", "*a D -> *a, *a", at="dim")
