"""Rules hold in dtypes that round, wrap around or have no order."""

from __future__ import annotations

import pytest
import torch

from samite.testing.rulecheck import Sample, check_rules, floats, ints
from samite.testing.rulecheck.dtypes import DTYPES, samples_of_all_dtypes, variants
from samite.testing.rulecheck.samples import all_samples


def numbers(*shape: int) -> object:
    return ints(*shape, low=1, high=9, dtype=torch.uint8)


@pytest.mark.parametrize(
    "sample",
    [
        # A mean of integers is rounded: a sum of the means of terms is another number.
        Sample("aten.avg_pool2d", (ints(3, 4, 4, 6), [3, 3], [2, 2], [1, 1])),
        Sample(
            "aten.avg_pool2d_backward",
            (ints(3, 4, 2, 3), ints(3, 4, 4, 6), [2, 2], [2, 2], [0, 0], False, True, None),
        ),
        Sample("aten.upsample_bilinear2d", (numbers(2, 3, 3, 2), [5, 4], False)),
        # Terms of unsigned numbers wrap around, and must not be read as larger ones.
        Sample("aten.mul.Scalar", (numbers(7, 4), 0.5)),
        Sample("aten.div.Tensor", (numbers(7, 4), numbers(7, 4))),
        Sample("aten.trace", (numbers(7, 4),)),
        # 0 times an infinite logarithm is 0, of terms it is not.
        Sample("aten.xlogy.Tensor", (ints(7, 4, low=0, high=0), ints(7, 4, low=0, high=0))),
        Sample("aten.special_xlog1py", (floats(7, 4, low=0, high=0), floats(7, 4, low=-1, high=-1))),
        # Complex numbers have no largest one.
        Sample("aten.logsumexp", (floats(7, 2, 6, dtype=torch.complex128), [0], False)),
        # An index without elements may have any dims.
        Sample("aten.gather", (floats(7), 0, ints(3, 0))),
    ],
    ids=str,
)  # fmt: skip
def test_a_dtype_is_right(sample: Sample) -> None:
    report = check_rules([sample.op], ({"a": 2}, {"a": 3}), {sample.op: [sample]}, limit=None, missing=False)
    assert report.ok, report


def test_samples_come_in_the_dtypes_that_the_kernel_takes() -> None:
    bmm = all_samples()["aten.bmm"][0]
    made = [str(bmm).replace("float64", str(dtype).removeprefix("torch.")) for dtype in DTYPES]
    assert [*map(str, variants(bmm))] == made
    floors = [sample.args[0].dtype for sample in variants(Sample("aten.floor", (floats(3),)))]
    assert floors == [torch.int64, torch.uint8, torch.bfloat16]
    assert not [*variants(all_samples()["samite.sdpa"][0])]
    whole = samples_of_all_dtypes()["aten.bmm"]
    assert [*map(str, whole)] == [*map(str, all_samples()["aten.bmm"]), *made]
