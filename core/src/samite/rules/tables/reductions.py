"""Reductions, and ops that need a dim whole or communicate over it."""

from __future__ import annotations

from samite.ir.graph import Op
from samite.rules.expansions.scan import cummax, cummin, cumprod, cumsum, logcumsumexp
from samite.rules.expansions.search import argmax, argmin, max_dim, min_dim
from samite.rules.expansions.softmax import log_softmax, log_softmax_backward, logsumexp, softmax, softmax_backward
from samite.rules.language import rule
from samite.rules.tables.elementwise import exact_cast


def found(op: Op) -> str:
    """Without a dim the result is an index into the flattened tensor."""
    return "*D -> ." if op.literals.get("dim") is None else "*a d -> *a"


rule("sum.dim_IntList", "*a *r -> *a", sum="r", at="dim", linear=exact_cast)
rule("sum", "*r -> .", sum="r", linear=exact_cast)
rule("prod", "*r -> .", prod="r")
rule("prod.dim_int", "*a *r -> *a", prod="r", at="dim")
rule("amax", "*a *r -> *a", max="r", at="dim")
rule("amin", "*a *r -> *a", min="r", at="dim")
rule("max", "*r -> .", max="r")
rule("min", "*r -> .", min="r")
rule("any", "*r -> .", max="r")
rule("any.dim", "*a *r -> *a", max="r", at="dim")
rule("any.dims", "*a *r -> *a", max="r", at="dim")
rule("all", "*r -> .", min="r")
rule("all.dim", "*a *r -> *a", min="r", at="dim")
rule("all.dims", "*a *r -> *a", min="r", at="dim")

rule("_softmax", "*a d -> *a d", at="dim", expand={"d": softmax})
rule("_log_softmax", "*a d -> *a d", at="dim", expand={"d": log_softmax})
rule("_softmax_backward_data", "*a d, *a d -> *a d", at="dim", linear="0", expand={"d": softmax_backward})
rule("_log_softmax_backward_data", "*a d, *a d -> *a d", at="dim", linear="0", expand={"d": log_softmax_backward})
rule("logsumexp", "*a *r -> *a", at="dim", expand={"r": logsumexp})

rule("cumsum", "*a d -> *a d", at="dim", plain="d", linear=exact_cast, expand={"d": cumsum})
rule("cumprod", "*a d -> *a d", at="dim", plain="d", expand={"d": cumprod})
rule("logcumsumexp", "*a d -> *a d", at="dim", plain="d", expand={"d": logcumsumexp})
rule("cummax", "*a d -> *a d, *a d", at="dim", plain="d", expand={"d": cummax})
rule("cummin", "*a d -> *a d, *a d", at="dim", plain="d", expand={"d": cummin})

rule("argmax", found, at="dim", plain="d", expand={"d": argmax})
rule("argmin", found, at="dim", plain="d", expand={"d": argmin})
rule("max.dim", "*a d -> *a, *a", at="dim", plain="d", expand={"d": max_dim})
rule("min.dim", "*a d -> *a, *a", at="dim", plain="d", expand={"d": min_dim})
# Which of equal elements comes first is up to the kernel, so it must see all: masked logits are equal, and zeros.
rule("topk", "*a D -> *a K, *a K", at="dim")
