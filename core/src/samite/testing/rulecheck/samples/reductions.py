"""Samples of reductions."""

from __future__ import annotations

from collections.abc import Iterator

from samite.testing.rulecheck.sample import Sample, floats

__all__ = ["samples"]


def samples() -> Iterator[Sample]:
    for keepdim in (False, True):
        for dims in ([0], [-1], [0, 2], []):
            yield Sample("aten.sum.dim_IntList", (floats(7, 2, 6), dims, keepdim))
            yield Sample("aten.amax", (floats(7, 2, 6), dims, keepdim))
    for dim in (0, 1, -1):
        yield Sample("aten._softmax", (floats(7, 4), dim, False))
        yield Sample("aten._log_softmax", (floats(7, 4), dim, False))
