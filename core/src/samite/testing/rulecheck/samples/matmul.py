"""Samples of products."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from samite.testing.rulecheck.sample import Fill, Sample, floats, ints

__all__ = ["samples"]


class Columns(Fill):
    """A matrix whose columns lie together."""

    def make(self, generator: torch.Generator) -> torch.Tensor:
        return super().make(generator).t().contiguous().t()


def samples() -> Iterator[Sample]:
    for m, k, n in ((7, 4, 6), (4, 7, 1)):
        yield Sample("aten.mm", (floats(m, k), floats(k, n)))
        yield Sample("aten.bmm", (floats(3, m, k), floats(3, k, n)))
        yield Sample("aten.mv", (floats(m, k), floats(k)))
        yield Sample("aten.dot", (floats(k), floats(k)))
        for bias in ((n,), (m, n), (1, n), (m, 1), (1,), ()):
            yield Sample("aten.addmm", (floats(*bias), floats(m, k), floats(k, n)))
        yield Sample("aten.addmm", (floats(n), floats(m, k), floats(k, n)), {"beta": 0.5, "alpha": 2.0})
        for bias in ((m,), (1,), ()):
            yield Sample("aten.addmv", (floats(*bias), floats(m, k), floats(k)))
        for bias in ((3, m, n), (m, n), (3, 1, n), (n,), ()):
            yield Sample("aten.baddbmm", (floats(*bias), floats(3, m, k), floats(3, k, n)))
        for bias in ((m, n), (n,)):
            yield Sample("aten.addbmm", (floats(*bias), floats(3, m, k), floats(3, k, n)))
    yield Sample("aten.mm", (ints(7, 4), ints(4, 6)))
    eight = torch.float8_e4m3fn
    factors, one = (floats(7, 16, dtype=eight), Columns((16, 32), eight)), floats(dtype=torch.float32)
    rows, columns = floats(7, 1, dtype=torch.float32), floats(1, 32, dtype=torch.float32)
    tensorwise = ([one], [0], [0])
    yield Sample("aten._scaled_mm", (*factors, one, one), {"out_dtype": torch.bfloat16}, gradient=False)
    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm_v2", "CPU"):  # not in torch 2.11, nor are rows
        yield Sample("aten._scaled_mm", (*factors, rows, columns), {"out_dtype": torch.bfloat16}, gradient=False)
        yield Sample("aten._scaled_mm_v2", (*factors, *tensorwise, *tensorwise, None, torch.bfloat16), gradient=False)
    yield Sample("aten.mm", (floats(7, 0), floats(0, 6)))
