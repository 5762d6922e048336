"""Fourier transforms. Every output depends on all of a transformed dim, so those are whole; the others are free."""

from __future__ import annotations

from samite.ir.graph import Op
from samite.rules.language import rule
from samite.rules.tables.views import arrow, dims_of


def transformed(op: Op) -> str:
    """The last transformed dim may change its length, between real numbers and half of a symmetric spectrum."""
    before = dims_of(op)
    where = [d % len(before) for d in op.literals["dim"]]
    before = [d.upper() if i in where else d for i, d in enumerate(before)]
    after = list(before)
    if where:
        after[where[-1]] = "L"
    return arrow(before, after)


for name in ("_fft_c2c", "_fft_r2c", "_fft_c2r"):
    rule(name, transformed, linear="all")
