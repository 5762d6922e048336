"""The neutral element of each reduction: what a rank without a term contributes."""

from __future__ import annotations

from math import inf

from samite.errors import LayoutError, nearest

__all__ = ["IDENTITY", "identity"]

IDENTITY: dict[str, float] = {"sum": 0.0, "max": -inf, "min": inf, "prod": 1.0}
"""By reduction kind, for floating dtypes that have infinities."""

_FLOATS_WITH_INFINITY = ("float64", "float32", "float16", "bfloat16", "float8_e5m2")
_LARGEST_FINITE = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2fnuz": 57344.0}
_INTEGER_RANGE = {
    **{f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
_COMPLEX = ("complex32", "complex64", "complex128")


def identity(kind: str, dtype: str) -> int | float | bool:
    """The x with `kind(x, y) == y` for every y of `dtype` (torch's name: "float32", "int64", "bool").

    Raises LayoutError if there is none: an unknown kind or dtype, or an order of complex numbers.
    """
    if kind not in IDENTITY:
        raise LayoutError(f'no reduction "{kind}"', help=nearest(kind, IDENTITY))
    if dtype in _FLOATS_WITH_INFINITY:
        return IDENTITY[kind]
    if dtype in _LARGEST_FINITE:
        return max(-_LARGEST_FINITE[dtype], min(IDENTITY[kind], _LARGEST_FINITE[dtype]))
    if dtype == "bool":
        return kind in ("min", "prod")
    if dtype in _INTEGER_RANGE:
        low, high = _INTEGER_RANGE[dtype]
        return {"sum": 0, "prod": 1, "max": low, "min": high}[kind]
    if dtype in _COMPLEX and kind in ("sum", "prod"):
        return IDENTITY[kind]
    if dtype in _COMPLEX:
        raise LayoutError(f"{dtype} has no {kind}: complex numbers have no order", help="reduce with sum or prod")
    raise LayoutError(f'no dtype "{dtype}"', help=nearest(dtype, (*_FLOATS_WITH_INFINITY, *_INTEGER_RANGE, "bool")))
