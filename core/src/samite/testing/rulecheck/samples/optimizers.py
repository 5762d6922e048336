"""Samples of optimizer updates."""

from __future__ import annotations

from collections.abc import Iterator

from samite.testing.rulecheck.sample import Sample, floats, ints

__all__ = ["samples"]


def samples() -> Iterator[Sample]:
    for shape in ((7, 4), (1,)):
        for decay, decoupled, maximize in ((0.1, True, False), (0.1, False, True), (0.0, True, False)):
            state = (floats(*shape), floats(*shape), floats(*shape), floats(*shape, low=0.1))
            scalars = (ints(low=1, high=9), floats(low=0.1, high=0.2))
            constants = (0.9, 0.99, 1e-3, decay, decoupled, maximize)
            yield Sample("samite.adam", (*state, *scalars, *constants), gradient=False)
