"""Samples of ops that make values."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from samite.testing.rulecheck.sample import Sample, ints

__all__ = ["samples"]


def samples() -> Iterator[Sample]:
    for shape in ([7, 4], [1], [], [0, 4]):
        for dtype in (torch.float32, torch.int64, torch.bool):
            yield Sample("aten.full", (shape, 1), {"dtype": dtype})
            yield Sample("aten.zeros", (shape,), {"dtype": dtype})
            yield Sample("aten.ones", (shape,), {"dtype": dtype})
        yield Sample("aten.empty.memory_format", (shape,), compare=False)
        yield Sample("samite.philox_uniform", (ints(low=0, high=1 << 40), 3, shape))
    yield Sample("samite.philox_uniform_at", (ints(low=0, high=1 << 40), 3, ints(7, 4, low=0, high=1000)))
    for end in (7, 1, 6):
        yield Sample("aten.arange", (end,))
        yield Sample("aten.arange.start", (2, 2 + end))
        yield Sample("aten.arange.start_step", (1.0, 1.0 + 0.5 * end, 0.5))
    yield Sample("aten.eye", (7,))
    yield Sample("aten.eye.m", (7, 4), {"dtype": torch.int64})
    yield Sample("aten.tril_indices", (4, 3))
    yield Sample("aten.triu_indices", (4, 3, 1))
    yield Sample("aten.scalar_tensor", (2.5,))
