"""Normalisations that stay one op."""

from __future__ import annotations

from collections.abc import Callable

from samite.ir.graph import Op
from samite.rules.expansions.normalization import layer_norm, layer_norm_backward
from samite.rules.language import rule


def normalised(text: str) -> Callable[[Op], str]:
    """`text` with {n} for the normalised dims and {o} for as many ones."""

    def spell(op: Op) -> str:
        count = len(op.literals["normalized_shape"])
        return text.format(n=" ".join(f"n{i}" for i in range(count)), o=" ".join(["1"] * count))

    spell.__name__ = "normalised"
    return spell


DIMS = range(8)
"""Of what is normalised."""

rule(
    "native_layer_norm",
    normalised("*a {n}, ?({n}), ?({n}) -> *a {n}, *a {o}, *a {o}"),
    expand={f"n{i}": layer_norm for i in DIMS},
)
rule(
    "native_layer_norm_backward",
    normalised("*a {n}, *a {n}, *a {o}, *a {o}, ?({n}), ?({n}) -> *a {n}, {n}, {n}"),
    sum="a",
    linear="0",
    expand={f"n{i}": layer_norm_backward for i in DIMS},
)
