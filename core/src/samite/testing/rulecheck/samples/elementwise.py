"""Samples of pointwise ops."""

from __future__ import annotations

from collections.abc import Iterator

from samite.testing.rulecheck.sample import Sample, floats

__all__ = ["samples"]


def samples() -> Iterator[Sample]:
    for name in ("relu", "exp", "neg"):
        yield Sample(f"aten.{name}", (floats(7, 4),))
        yield Sample(f"aten.{name}", (floats(1, 6),))
    for name in ("add.Tensor", "mul.Tensor", "div.Tensor", "sub.Tensor"):
        yield Sample(f"aten.{name}", (floats(7, 4), floats(7, 4)))
        yield Sample(f"aten.{name}", (floats(7, 1), floats(4)))
        yield Sample(f"aten.{name}", (floats(3, 4), floats()))
