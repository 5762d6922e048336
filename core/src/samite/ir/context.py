"""The one MLIR context of a process, and tensor types as plain data. torch_mlir is imported on first use only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

__all__ = [
    "TensorType",
    "context",
    "dtype_codes",
    "element_dtype",
    "mlir_type",
    "tensor_type",
    "tuple_type",
    "tuple_types",
]


class TensorType(NamedTuple):
    """Shape and dtype of a value; `dtype` is torch's name without its prefix ("float32", "bool").

    A result that an op leaves out (an unwanted gradient) has dtype "none".
    """

    shape: tuple[int, ...]
    dtype: str


@cache
def context() -> Any:
    """The shared `ir.Context`, with the torch and dist dialects loaded. It lives as long as the process: types and
    attributes stay valid, so they may be cached; operations and values never are."""
    from torch_mlir import ir
    from torch_mlir.dialects import torch as torch_dialect

    from samite.ir.dialect import dist_dialect

    made = ir.Context()
    torch_dialect.register_dialect(made)
    with made, ir.Location.unknown():
        dist_dialect().load()
    return made


@cache
def _element_names() -> tuple[dict[str, str], dict[str, str]]:
    """torch name -> MLIR element type, and back."""
    from torch_mlir.extras.fx_importer import TORCH_DTYPE_TO_MLIR_TYPE_ASM

    there = {str(dtype).removeprefix("torch."): asm for dtype, asm in TORCH_DTYPE_TO_MLIR_TYPE_ASM.items()}
    return there, {asm: name for name, asm in there.items()}


def element_dtype(asm: str) -> str:
    """torch's name of an MLIR element type: "si64" is int64."""
    return _element_names()[1][asm]


@cache
def dtype_codes() -> dict[Any, int]:
    """torch.dtype -> the int that stands for it in the torch dialect. torch-mlir has complex64 at the place of
    complex128 in torch's own list, and no code for the latter."""
    import torch
    from torch_mlir.extras.fx_importer import TORCH_DTYPE_TO_INT

    return {torch.complex128: 100, **TORCH_DTYPE_TO_INT}


_read: dict[Any, TensorType | None] = {}


def tensor_type(type: Any) -> TensorType | None:
    """Shape and dtype of a `!torch.vtensor`, None of any other type. Printing a type costs 5 µs, so it is cached."""
    try:
        return _read[type]
    except KeyError:
        text, found = str(type), None
        if text.startswith("!torch.vtensor<["):
            shape, _, element = text[len("!torch.vtensor<[") : -1].partition("],")
            found = TensorType(tuple(int(n) for n in shape.split(",") if n), element_dtype(element))
        elif text == "!torch.none":
            found = TensorType((), "none")
        _read[type] = found
        return found


@cache
def mlir_type(type: TensorType) -> Any:
    """The `!torch.vtensor` of a shape and dtype."""
    from torch_mlir import ir

    if type.dtype == "none":
        return ir.Type.parse("!torch.none", context())
    element = _element_names()[0][type.dtype]
    return ir.Type.parse(f"!torch.vtensor<[{','.join(map(str, type.shape))}],{element}>", context())


@cache
def _tuple(types: tuple[Any, ...]) -> Any:
    from torch_mlir import ir

    return ir.Type.parse(f"!torch.tuple<{', '.join(str(t).removeprefix('!torch.') for t in types)}>", context())


def tuple_type(types: Sequence[Any]) -> Any:
    """The `!torch.tuple` of MLIR types. The framework that ops are defined in knows variadic operands of one type only,
    so ops with regions take tuples."""
    return _tuple(tuple(types))


_ELEMENT = re.compile(r"vtensor<\[[0-9,]*\],(?:complex<\w+>|\w+)>|none")


def tuple_types(type: Any) -> tuple[TensorType, ...] | None:
    """The tensors of a `!torch.tuple`; None of any other type."""
    from torch_mlir import ir

    text = str(type)
    if not text.startswith("!torch.tuple<"):
        return None
    parts = (tensor_type(ir.Type.parse(f"!torch.{part}", context())) for part in _ELEMENT.findall(text))
    return tuple(part for part in parts if part is not None)
