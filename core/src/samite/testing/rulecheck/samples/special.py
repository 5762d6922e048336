"""Samples of special functions and of complex numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from samite.rules.tables.elementwise import FURTHER_UNARY, POLYNOMIALS, SPECIAL_UNARY
from samite.testing.rulecheck.sample import Sample, floats, ints

__all__ = ["samples"]

UNARY_ARGUMENTS: dict[str, tuple[Any, ...]] = {"copysign.Scalar": (-1.0,), "mvlgamma": (2,)}
BESSEL = ("bessel_y0", "bessel_y1", "modified_bessel_k0", "modified_bessel_k1")


def functions() -> Iterator[Sample]:
    for name in (*FURTHER_UNARY.split(), *(f"special_{n}" for n in SPECIAL_UNARY.split())):
        has_gradient = "bessel" not in name and "airy" not in name
        x = floats(7, 4, low=0.6, high=0.9)
        yield Sample(f"aten.{name}", (x, *UNARY_ARGUMENTS.get(name, ())), gradient=has_gradient)
    for name in ("gcd", "lcm"):
        yield Sample(f"aten.{name}", (ints(7, 4, low=1), ints(4, low=1)))
    for name in ("igamma", "igammac"):
        yield Sample(f"aten.{name}", (floats(7, 4, low=0.5), floats(4, low=0.5)), gradient=False)
    for name in ("special_zeta", "special_xlog1py"):
        left, right = floats(7, 4, low=1.5), floats(4, low=0.5)
        yield Sample(f"aten.{name}", (left, right), gradient=False)
        yield Sample(f"aten.{name}.other_scalar", (left, 1.5), gradient=False)
        yield Sample(f"aten.{name}.self_scalar", (1.5, right), gradient=False)
    for name in (f"special_{n}" for n in POLYNOMIALS.split()):
        yield Sample(f"aten.{name}", (floats(7, 4), floats(7, 1, low=0.0, high=5.0)), gradient=False)
        yield Sample(f"aten.{name}.n_scalar", (floats(7, 4), 3), gradient=False)
        yield Sample(f"aten.{name}.x_scalar", (0.5, ints(7, low=0)), gradient=False)
    yield Sample("aten.frexp.Tensor", (floats(7, 4),))
    yield Sample("aten.rrelu_with_noise_backward", (floats(7, 4), floats(7, 4), floats(7, 4), 0.1, 0.3, True, False))


def complex_numbers() -> Iterator[Sample]:
    for shape in ((7, 4), (1,), ()):
        numbers = floats(*shape, dtype=torch.complex128)
        for name in ("angle", "_conj_physical", "abs", "neg", "exp", "sum", "reciprocal"):
            yield Sample(f"aten.{name}", (numbers,))
        yield Sample("aten._conj", (numbers,), gradient=False)
        yield Sample("aten.view_as_real", (numbers,))
        yield Sample("aten.view_as_complex", (floats(*shape, 2),))
        yield Sample("aten.complex", (floats(*shape), floats(*shape)))
        yield Sample("aten.polar", (floats(*shape), floats(*shape)))
        yield Sample("aten.mul.Tensor", (numbers, numbers))
        yield Sample("aten.add.Tensor", (numbers, floats(*shape)))
    yield Sample("aten.mm", (floats(7, 4, dtype=torch.complex128), floats(4, 6, dtype=torch.complex128)))


def samples() -> Iterator[Sample]:
    yield from functions()
    yield from complex_numbers()
