"""Checksums of tensors: what they tell apart, and what they do not depend on."""

from __future__ import annotations

import pytest
import torch

from samite.runtime.digests import SAMPLE, digest, sampled_digest


@pytest.mark.parametrize("checksum", [digest, sampled_digest])
@pytest.mark.parametrize("shape", [(), (0, 3), (7, 5), (SAMPLE, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64])
def test_equal_values_and_no_others(checksum: object, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert callable(checksum)
    value = torch.randint(2, shape).to(dtype)
    assert checksum(value) == checksum(value.clone())
    assert checksum(value) != checksum(value.unsqueeze(0))
    assert checksum(value) != checksum(value.to(torch.complex128))
    if value.numel():
        assert checksum(value) != checksum(~value if dtype == torch.bool else value + 1)


def test_how_a_value_lies_in_memory_does_not_matter() -> None:
    value = torch.randn(300, 200)
    for other in (value.t().contiguous().t(), torch.cat([value, value], 1)[:, :200], value.neg()._neg_view()):
        assert not other.is_contiguous() or other.is_neg()
        assert digest(other) == digest(value)
        assert sampled_digest(other) == sampled_digest(value)


def test_a_sample_sees_another_order_and_another_column() -> None:
    rows = torch.arange(4 * SAMPLE)[:, None].expand(-1, 8).contiguous()
    assert sampled_digest(rows) != sampled_digest(rows.flip(0))
    columns = torch.zeros(4 * SAMPLE, 8)
    for column in range(8):  # a sample of even steps would meet the first alone
        other = columns.clone()
        other[:, column] = 1
        assert sampled_digest(other) != sampled_digest(columns)


def test_a_digest_sees_one_element() -> None:
    value = torch.zeros(100 * SAMPLE)
    other = value.clone()
    other[77 * SAMPLE] = 1
    assert digest(value) != digest(other)
