"""Samples of ops that need the order of elements."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from samite.testing.rulecheck.sample import Fill, Sample, distinct, distinct_ints, floats, ints

__all__ = ["samples"]


def ranked() -> Iterator[Sample]:
    for dim in (0, 1, -1):
        yield Sample("aten.sort", (distinct(7, 4), dim))
        yield Sample("aten.sort.stable", (ints(7, 4),), {"stable": True, "dim": dim})
        for keepdim in (False, True):
            yield Sample("aten.kthvalue", (distinct(7, 4), 2, dim, keepdim))
            for name in ("median.dim", "nanmedian.dim", "mode"):
                yield Sample(f"aten.{name}", (distinct(7, 4), dim, keepdim))
    yield Sample("aten.median", (distinct(7, 4),))
    yield Sample("aten.nanmedian", (distinct(7, 4),))
    yield Sample("aten.nonzero_static", (ints(7, 4, low=0, high=1),), {"size": 5})


def placed() -> Iterator[Sample]:
    edges = distinct(5)
    yield Sample("aten.bucketize.Tensor", (floats(7, 4), edges))
    yield Sample("aten.searchsorted.Tensor", (edges, floats(7, 4)))
    yield Sample("aten.searchsorted.Tensor", (distinct(7, 4), floats(7, 3)), {"right": True})
    yield Sample(
        "aten.searchsorted.Tensor", (distinct(7, 4), floats(7, 3)), {"sorter": distinct_ints(7, 4, dim=1, high=3)}
    )
    yield Sample("aten.searchsorted.Scalar", (edges, 0.5))
    for shape in ((7, 4), (1,), ()):
        yield Sample("aten.histc", (floats(*shape), 4, -2, 2))
        yield Sample("aten.histc", (floats(*shape), 4, -1, 2))
        yield Sample("aten.histc", (floats(*shape), 4))
    for weight in ({}, {"weight": floats(7, 4)}):
        yield Sample("aten.histogram.bin_ct", (floats(7, 4), 3), {"range": [-2.0, 2.0], **weight})
        yield Sample("aten.histogram.bins_tensor", (floats(7, 4), edges), weight, trusting=True)
    points = floats(7, 2)
    yield Sample("aten._histogramdd_bin_edges", (points, [2, 3]))
    yield Sample("aten._histogramdd_from_bin_cts", (points, [2, 3]))
    yield Sample("aten._histogramdd_from_bin_tensors", (points, [floats(3), floats(4)]), {"weight": floats(7)})


class Lengths(Fill):
    """How long segments are, or where each begins and the last ends."""

    def make(self, generator: torch.Generator) -> torch.Tensor:
        ends = torch.tensor([0, 3, 3, 7])
        one = ends.diff() if self.shape[-1] == 3 else ends
        return one.expand(self.shape).contiguous()


def segmented() -> Iterator[Sample]:
    for batch in ((), (2,)):
        data, made = floats(*batch, 7, 4), floats(*batch, 3, 4)
        for reduce in ("sum", "max"):
            for name, length in (("lengths", 3), ("offsets", 4)):
                where = {name: Lengths((*batch, length)), "axis": len(batch), "initial": 0}
                yield Sample("aten.segment_reduce", (data, reduce), {**where, "unsafe": True}, gradient=False)
                yield Sample("aten._segment_reduce_backward", (made, made, data, reduce), where, trusting=True)


def distances() -> Iterator[Sample]:
    for batch in ((), (7,), (2, 3)):
        x, y = floats(*batch, 7, 4), floats(*batch, 3, 4)
        for p in (2.0, 1.0):
            yield Sample("aten._cdist_forward", (x, y, p, None), gradient=False)
            arguments = (floats(*batch, 7, 3), x, y, p, floats(*batch, 7, 3, low=0.5))
            yield Sample("aten._cdist_backward", arguments)
    yield Sample("aten._pdist_forward", (floats(5, 4), 2.0))
    yield Sample("aten._pdist_backward", (floats(10), floats(5, 4), 2.0, floats(10, low=0.5)))


def samples() -> Iterator[Sample]:
    for family in (ranked, placed, segmented, distances):
        yield from family()
