"""Plain values as MLIR attributes, and back."""

from __future__ import annotations

from functools import cache
from typing import Any

from samite.errors import VerifyError

__all__ = ["decode", "encode", "read_mesh"]


@cache
def _bindings() -> Any:
    from torch_mlir import ir  # an import statement on the hot path costs more than the call it serves

    return ir


def encode(value: Any) -> Any:
    """A string, an int (64 bits) or nested tuples of them as an MLIR attribute."""
    ir = _bindings()
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    return ir.ArrayAttr.get([encode(v) for v in value])


def decode(attribute: Any) -> Any:
    """The inverse of `encode`."""
    ir = _bindings()
    attribute = attribute.maybe_downcast()  # parameters of our own attributes come as plain `Attribute`
    if isinstance(attribute, ir.ArrayAttr):
        return tuple(decode(a) for a in attribute)
    return attribute.value


def read_mesh(attribute: Any) -> dict[str, int]:
    """Axis sizes of a `#dist.mesh` attribute, in mesh order. Raises VerifyError if it describes no mesh."""
    if not hasattr(attribute, "axes"):
        raise VerifyError(f"{attribute} is no #dist.mesh")
    axes, sizes = decode(attribute.axes), decode(attribute.sizes)
    if len(axes) != len(sizes) or len(set(axes)) != len(axes) or not all(isinstance(n, int) and n > 0 for n in sizes):
        raise VerifyError(f"a mesh has one size for each axis, named once, have {attribute}")
    return dict(zip(axes, sizes, strict=True))
