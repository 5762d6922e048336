"""Samples of optimizer updates."""

from __future__ import annotations

from collections.abc import Iterator

from samite.testing.rulecheck.sample import Sample, floats, ints

__all__ = ["samples"]


def samples() -> Iterator[Sample]:
    for shape in ((7, 4), (1,)):
        tensor, square = floats(*shape), floats(*shape, low=0.1)
        count, numbers = ints(low=1, high=9), floats(5, low=0.1, high=0.9)
        for flags in ((True, True, False), (True, False, True), (False, True, False)):
            yield Sample("samite.adam", (tensor, tensor, tensor, square, count, numbers, *flags), gradient=False)
            yield Sample(
                "samite.amsgrad", (tensor, tensor, tensor, square, square, count, numbers, *flags), gradient=False
            )
        numbers = floats(4, low=0.1, high=0.9)
        for decays, maximize in ((True, False), (False, True)):
            yield Sample("samite.sgd", (tensor, tensor, numbers, decays, maximize), gradient=False)
        for buffer, flags in (
            (tensor, (True, True, False)),
            (tensor, (False, False, True)),
            (None, (True, True, True)),
        ):
            yield Sample("samite.sgd_momentum", (tensor, tensor, buffer, numbers, *flags), gradient=False)
