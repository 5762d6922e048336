"""Normalisations that stay one op. The normalised dims must be whole: their statistics are one kernel's."""

from __future__ import annotations

from samite.ir.graph import Op
from samite.rules.language import rule


def normalised(op: Op) -> str:
    return " ".join(f"N{i}" for i in range(len(op.literals["normalized_shape"])))


def ones(op: Op) -> str:
    return " ".join("1" for _ in op.literals["normalized_shape"])


rule(
    "native_layer_norm",
    lambda op: "*a {n}, ?({n}), ?({n}) -> *a {n}, *a {o}, *a {o}".format(n=normalised(op), o=ones(op)),
)
rule(
    "native_layer_norm_backward",
    lambda op: "*a {n}, *a {n}, *a {o}, *a {o}, ?({n}), ?({n}) -> *a {n}, {n}, {n}".format(
        n=normalised(op), o=ones(op)
    ),
    sum="a",
    linear="0",
)
