"""Ops that need the order of elements: selections by rank, places in a sorted sequence, histograms, distances.

A statistic of order depends on all elements of its dim, so that dim is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samite.ir.graph import Constant, Op
from samite.rules.language import rule
from samite.rules.shards import Shards


def sorted_sequence(op: Op) -> str:
    """The sequence is one for all values, or has a row for each of their rows."""
    sequence = "S" if len(op.operands[0].shape) == 1 else "*a S"
    values = "" if op.name.endswith(".Scalar") else ", *a" if sequence == "S" else ", *a v"
    sorter = f", {sequence}" if not isinstance(op.form[-1], Constant) else ""
    result = "." if op.name.endswith(".Scalar") else values.removeprefix(", ")
    return f"{sequence}{values}{sorter} -> {result}"


def histogram(op: Op) -> str:
    """Without a range the bins lie between the smallest and the largest element."""
    return "*A -> B" if op.literals.get("min", 0) == op.literals.get("max", 0) else "*a -> B"


def bins(op: Op) -> str:
    """Bins of points: their edges along each coordinate, or what falls in each."""
    operands, results = ([len(t.shape) for t in types] for types in (op.operands, op.results))
    terms = [" ".join(f"{letter}{i}" for i in range(n)) for letter, n in zip("ABCDEFGHIJK", operands, strict=False)]
    made = [" ".join(f"R{i}{d}" for d in range(n)) for i, n in enumerate(results)]
    return f"{', '.join(terms)} -> {', '.join(made)}"


def segments(text: str) -> Callable[[Op], str]:
    """`text` with {data} and {made} for a tensor before and after its rows are reduced segment by segment, and {b} for
    the dims before the rows, which what says where segments are has too. Dims behind the rows are free."""

    def spell(op: Op) -> str:
        axis = op.literals["axis"]
        free = [f"d{i}" for i in range(len(op.results[0].shape) - axis - 1)]
        batch = [f"B{i}" for i in range(axis)]
        data, made = " ".join([*batch, "N", *free]), " ".join([*batch, "S", *free])
        return text.format(data=data, made=made, b=" ".join(batch))

    spell.__name__ = "segments"
    return spell


def histc(s: Shards, x: torch.Tensor, **literals: Any) -> torch.Tensor:
    x = s.mask(x, "a", range(x.ndim), literals["max"] + 1)
    return torch.ops.aten.histc(x, **literals)


rule("sort", "*a D -> *a D, *a D", at="dim")
rule("sort.stable", "*a D -> *a D, *a D", at="dim")
for name in ("kthvalue", "median.dim", "nanmedian.dim", "mode"):
    rule(name, "*a D -> *a, *a", at="dim")
rule("median", "*D -> .")
rule("nanmedian", "*D -> .")

rule("searchsorted.Tensor", sorted_sequence, padding={2: 0})  # where the sorted ones are, in a sequence out of order
rule("searchsorted.Scalar", sorted_sequence)
rule("bucketize.Tensor", "*a, B -> *a")

rule("histc", histogram, sum="a", indexes="a", local=histc)
rule("histogram.bin_ct", "*A, ?(*A) -> B, E")
rule("histogram.bins_tensor", "*A, E, ?(*A) -> B, E")
rule("_histogramdd_bin_edges", bins)
rule("_histogramdd_from_bin_cts", bins)
rule("_histogramdd_from_bin_tensors", bins)
rule("segment_reduce", segments("{data}, ?({b} L), ?({b} I), ?({b} E) -> {made}"))
rule("_segment_reduce_backward", segments("{made}, {made}, {data}, ?({b} L), ?({b} E) -> {data}"), linear="0")
rule("nonzero_static", "*A -> S R")

rule("_cdist_forward", "*a m K, *a n K -> *a m n")
rule("_cdist_backward", "*a m n, *a m K, *a n K, *a m n -> *a m K", sum="n", linear="0")
rule("_pdist_forward", "M K -> P")
rule("_pdist_backward", "P, M K, P -> M K")
