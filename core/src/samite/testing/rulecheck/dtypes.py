"""Samples in other dtypes than they are written in: integers that wrap around, complex numbers, half precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch

from samite.ir.graph import overload
from samite.testing.rulecheck.sample import Fill, Sample
from samite.testing.rulecheck.samples import all_samples

__all__ = ["samples_of_all_dtypes", "variants"]

DTYPES = (torch.int64, torch.uint8, torch.complex128, torch.bfloat16)


@cache
def samples_of_all_dtypes() -> dict[str, list[Sample]]:
    """By op: its samples, and variants of the first that has any."""
    return {op: [*samples, *_first_variants(samples)] for op, samples in all_samples().items()}


def _first_variants(samples: Sequence[Sample]) -> list[Sample]:
    return next(filter(None, ([*variants(sample)] for sample in samples)), [])


def variants(sample: Sample) -> Iterator[Sample]:
    """The sample with float64 numbers, and what it says of their dtype, in each of `DTYPES` that torch's kernel takes.

    Integers are from 1 on, as divisors are. None of Samite's own ops, which take what capture gives them.
    """
    if sample.op.startswith("samite."):
        return
    for dtype in DTYPES:
        args, kwargs = _cast(sample.args, dtype), _cast(sample.kwargs, dtype)
        made = dataclasses.replace(sample, args=args, kwargs=kwargs, gradient=False)
        if (args, kwargs) != (sample.args, sample.kwargs) and _takes(made):
            yield made


def _takes(sample: Sample) -> bool:
    args, kwargs = sample.draw(torch.Generator())
    try:
        with torch.no_grad():
            overload(sample.op)(*args, **kwargs)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, IndexError):
        return False
    return True


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if type(value) is Fill and value.dtype == torch.float64:
        if dtype.is_floating_point or dtype.is_complex:
            return dataclasses.replace(value, dtype=dtype)
        return Fill(value.shape, dtype, 1, 9)
    if value == torch.float64:
        return dtype
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v, dtype) for v in value)
    return {k: _cast(v, dtype) for k, v in value.items()} if isinstance(value, dict) else value
