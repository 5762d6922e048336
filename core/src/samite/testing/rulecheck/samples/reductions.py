"""Samples of reductions, and of ops that communicate over a dim."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from samite.testing.rulecheck.sample import Fill, Sample, bools, distinct, floats, ints

__all__ = ["samples"]


class WithNaN(Fill):
    def make(self, generator: torch.Generator) -> torch.Tensor:
        x = super().make(generator)
        return torch.where(x > 1, torch.nan, x)


def reduced() -> Iterator[Sample]:
    for keepdim in (False, True):
        for dims in ([0], [-1], [0, 2], [2, 1], []):
            yield Sample("aten.sum.dim_IntList", (floats(7, 2, 6), dims, keepdim))
            yield Sample("aten.amax", (floats(7, 2, 6), dims, keepdim))
            yield Sample("aten.amin", (ints(7, 2, 6), dims, keepdim))
            if dims:
                yield Sample("aten.logsumexp", (floats(7, 2, 6), dims, keepdim))
                yield Sample("aten.any.dims", (bools(7, 2, 6), dims, keepdim))
                yield Sample("aten.all.dims", (ints(7, 2, 6, low=0), dims, keepdim))
        for dim in (0, -1):
            yield Sample("aten.prod.dim_int", (floats(7, 4), dim, keepdim))
            yield Sample("aten.any.dim", (bools(7, 4), dim, keepdim))
            yield Sample("aten.all.dim", (bools(7, 4), dim, keepdim))
            yield Sample("aten.any.dim", (ints(7, 4, low=0, high=0), dim, keepdim))
            yield Sample("aten.all.dim", (floats(7, 4, low=1.0), dim, keepdim))
    for shape in ((7,), (3, 4), (1,), ()):
        for name in ("sum", "prod", "max", "min"):
            yield Sample(f"aten.{name}", (floats(*shape),))
            yield Sample(f"aten.{name}", (ints(*shape),))
        for name in ("any", "all"):
            yield Sample(f"aten.{name}", (bools(*shape),))
            yield Sample(f"aten.{name}", (ints(*shape, low=0, high=1),))
            # Neither the largest nor the smallest number is false.
            yield Sample(f"aten.{name}", (floats(*shape, low=0.0, high=0.0),))
    yield Sample("aten.max", (bools(7),))
    yield Sample("aten.sum", (bools(7),))
    yield Sample("aten.sum", (floats(7, dtype=torch.float32),), {"dtype": torch.float64})
    yield Sample("aten.sum", (floats(7),), {"dtype": torch.int64}, gradient=False)
    yield Sample("aten.amax", (bools(7, 4), [0]))
    yield Sample("aten.amin", (bools(7, 4), [1]))
    yield Sample("aten.sum.dim_IntList", (ints(7, 4, dtype=torch.int32), [0]))
    yield Sample("aten.sum.dim_IntList", (floats(), [0]))
    yield Sample("aten.prod", (ints(7, dtype=torch.int32),))


def softmaxes() -> Iterator[Sample]:
    for shape, dim in (((7, 4), 0), ((7, 4), -1), ((2, 7, 1), 1), ((2, 7, 1), 2), ((), 0)):
        x, grad = floats(*shape), floats(*shape)
        for name in ("_softmax", "_log_softmax"):
            yield Sample(f"aten.{name}", (x, dim, False))
            output = floats(*shape, low=0.1, high=0.9) if name == "_softmax" else floats(*shape, low=-3.0, high=-0.1)
            yield Sample(f"aten.{name}_backward_data", (grad, output, dim, torch.float64))
    for name in ("_softmax", "_log_softmax"):
        half = floats(7, 4, dtype=torch.bfloat16)
        yield Sample(f"aten.{name}", (half, 1, False))
        yield Sample(f"aten.{name}_backward_data", (half, half, 1, torch.bfloat16))
    yield Sample("aten.logsumexp", (floats(7, low=-torch.inf, high=-torch.inf), [0]))


def searches() -> Iterator[Sample]:
    for dim in (0, 1, -1):
        yield Sample("aten.cumsum", (floats(7, 4), dim))
        yield Sample("aten.cumsum", (ints(7, 4, dtype=torch.int32), dim))
        yield Sample("aten.cumprod", (floats(7, 4), dim))
        for name in ("cummax", "cummin"):
            yield Sample(f"aten.{name}", (distinct(7, 4), dim))
            yield Sample(f"aten.{name}", (ints(7, 4, low=0, high=1), dim))
            yield Sample(f"aten.{name}", (WithNaN((7, 4)), dim), gradient=False)
        yield Sample("aten.logcumsumexp", (floats(7, 4), dim))
        yield Sample("aten.logcumsumexp", (floats(7, 4, low=-torch.inf, high=-torch.inf), dim), gradient=False)
        yield Sample("aten.cumprod", (ints(7, 4, dtype=torch.int32), dim))
        for keepdim in (False, True):
            for name in ("max.dim", "min.dim", "argmax", "argmin"):
                yield Sample(f"aten.{name}", (distinct(7, 4), dim, keepdim))
                yield Sample(f"aten.{name}", (ints(7, 4, low=0, high=1), dim, keepdim))  # the first of equal ones
        for k, largest in ((1, True), (3, False)):
            yield Sample("aten.topk", (distinct(7, 4), k, dim, largest))
    yield Sample("aten.cumsum", (floats(7, 4, dtype=torch.float32), 0), {"dtype": torch.float64})
    yield Sample("aten.topk", (distinct(7), 7))
    yield Sample("aten.logsumexp", (ints(7, 4), [0]))
    yield Sample("aten.logsumexp", (bools(7, 4), [0, 1], True))
    yield Sample("aten.topk", (floats(7, 20, low=1.0, high=1.0), 5))  # all are equal
    yield Sample("aten.topk", (ints(7, 20, low=0, high=3), 5))
    yield Sample("aten.max.dim", (floats(7, 3, low=-torch.inf, high=-torch.inf), 0))
    for name in ("argmax", "argmin"):
        yield Sample(f"aten.{name}", (distinct(7, 4),))
        yield Sample(f"aten.{name}", (distinct(7, 4), None, True))


def samples() -> Iterator[Sample]:
    for family in (reduced, softmaxes, searches):
        yield from family()
