"""Samples of pointwise ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from samite.rules.tables.elementwise import BACKWARD, BINARY, LINEAR_UNARY, QUOTIENTS, UNARY
from samite.testing.rulecheck.sample import Fill, Sample, bools, floats, ints

__all__ = ["samples"]

SHAPES = ((7, 4), (1, 6))
INTEGERS = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift")
# Where an op is undefined beyond an interval, and where it needs further arguments.
DOMAIN = {
    **dict.fromkeys(("acos", "asin", "atanh", "erfinv"), (-0.9, 0.9)),
    **dict.fromkeys(("acosh", "log", "log10", "log2", "lgamma", "digamma", "polygamma"), (1.1, 3.0)),
    **dict.fromkeys(("log1p", "sqrt", "rsqrt", "reciprocal", "pow.Tensor_Scalar", "pow.Tensor_Tensor"), (0.2, 3.0)),
    **dict.fromkeys(("logit", "logit_backward", "xlogy.Tensor", "xlogy.Scalar_Other"), (0.1, 0.9)),
}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "clamp": (-0.5, 0.5),
    "clamp_max": (0.5,),
    "clamp_min": (-0.5,),
    "div.Scalar_mode": (0.7,),
    "fill.Scalar": (3.0,),
    "polygamma": (1,),
    "round.decimals": (),
    "threshold": (0.1, 0.5),
}
KEYWORDS: dict[str, dict[str, Any]] = {
    "div.Scalar_mode": {"rounding_mode": "floor"},
    "div.Tensor_mode": {"rounding_mode": "trunc"},
    "round.decimals": {"decimals": 1},
}
# The gradient of sgn is one of torch's zero tensors without memory.
NO_GRADIENT = ("floor_divide", "floor_divide.Scalar", "heaviside", "nextafter", "sgn")
BACKWARD_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "elu_backward": (1.0, 1.0, 1.0, False),
    "hardtanh_backward": (-1.0, 1.0),
    "hardshrink_backward": (0.5,),
    "leaky_relu_backward": (0.1, False),
    "softplus_backward": (1.0, 20.0),
    "softshrink_backward": (0.5,),
    "threshold_backward": (0.5,),
}


def operand(name: str, *shape: int) -> Fill:
    if name.split(".")[0] in INTEGERS:
        return ints(*shape, low=0)
    low, high = DOMAIN.get(name, (-2.0, 2.0))
    return floats(*shape, low=low, high=high)


def scalar(name: str) -> tuple[Any, ...]:
    """The number of an op whose second argument is one, as its overload's name says."""
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    overload = name.partition(".")[2]
    if "Scalar" not in overload:
        return ()
    return (3,) if name.split(".")[0] in INTEGERS else (0.5,)


def unary() -> Iterator[Sample]:
    for name in (UNARY + LINEAR_UNARY + " xlogy.Scalar_Other").split():
        for shape in SHAPES:
            # These take the number first.
            first = name in ("pow.Scalar", "polygamma")
            tensor, rest = operand(name, *shape), scalar(name)
            args = (*rest, tensor) if first else (tensor, *rest)
            yield Sample(f"aten.{name}", args, KEYWORDS.get(name, {}), gradient=name not in NO_GRADIENT)
    for name in ("add.Scalar", "mul.Scalar", "rsub.Scalar", "div.Scalar", "neg", "abs", "remainder.Scalar"):
        yield Sample(f"aten.{name}", (ints(7, 4), *((3,) if "Scalar" in name else ())))
    for name in ("logical_not", "bitwise_not", "clone"):
        yield Sample(f"aten.{name}", (bools(7, 4),))


def binary() -> Iterator[Sample]:
    for name in (BINARY + QUOTIENTS + " xlogy.Tensor").split():
        if name in ("where.ScalarOther", "where.ScalarSelf", "masked_fill.Scalar"):
            continue
        for left, right in (((7, 4), (7, 4)), ((7, 1), (4,)), ((3, 6), (1, 6)), ((4,), ())):
            operands = (operand(name, *left), operand(name, *right))
            yield Sample(f"aten.{name}", operands, KEYWORDS.get(name, {}), gradient=name not in NO_GRADIENT)
    for name in QUOTIENTS.split():  # a divisor of 0 in padding would raise
        yield Sample(f"aten.{name}", (ints(7, 4), ints(7, 4, low=1)), KEYWORDS.get(name, {}))
        yield Sample(f"aten.{name}", (ints(7, 4), ints(4, low=1)), KEYWORDS.get(name, {}))
    for name in ("eq.Tensor", "maximum", "logical_and", "bitwise_or.Tensor"):
        yield Sample(f"aten.{name}", (bools(7, 4), bools(7, 4)))
    yield Sample("aten.where.ScalarOther", (bools(7, 4), floats(7, 4), 0.5))
    yield Sample("aten.where.ScalarSelf", (bools(7, 4), 0.5, floats(4)))
    yield Sample("aten.masked_fill.Scalar", (floats(7, 4), bools(7, 1), 0.5))


def backward() -> Iterator[Sample]:
    for name in BACKWARD.split():
        for shape in SHAPES:
            inputs = [floats(*shape), operand(name, *shape)]
            arguments = BACKWARD_ARGUMENTS.get(name, ())
            if name == "elu_backward":
                yield Sample(f"aten.{name}", (inputs[0], *arguments, inputs[1]))
            else:
                yield Sample(f"aten.{name}", (*inputs, *arguments))
    yield Sample("aten.gelu_backward", (floats(7, 4), floats(7, 4)), {"approximate": "tanh"})
    yield Sample("aten.gelu", (floats(7, 4),), {"approximate": "tanh"})


def sums() -> Iterator[Sample]:
    for name in ("add.Tensor", "sub.Tensor", "rsub.Tensor", "mul.Tensor", "div.Tensor"):
        for left, right in (((7, 4), (7, 4)), ((7, 1), (4,)), ((3, 1, 6), (7, 1)), ((4,), ()), ((1, 1), (1, 1))):
            yield Sample(f"aten.{name}", (floats(*left), floats(*right)))
    for name in ("add.Tensor", "sub.Tensor"):
        yield Sample(f"aten.{name}", (floats(7, 4), floats(7, 4)), {"alpha": -0.5})
        yield Sample(f"aten.{name}", (ints(7, 4), ints(4)))
    yield Sample("aten.mul.Tensor", (ints(7, 4), ints(7, 4)))
    yield Sample("aten.mul.Tensor", (floats(7, 4), bools(7, 1)))
    yield Sample("aten.div.Tensor", (ints(7, 4), ints(7, 4, low=1)))
    for name in ("addcmul", "addcdiv"):
        yield Sample(f"aten.{name}", (floats(7, 4), floats(7, 4), floats(7, 4, low=1.0)), {"value": 0.3})
        yield Sample(f"aten.{name}", (floats(4), floats(7, 1), floats(low=1.0)))
    for shape in SHAPES:
        yield Sample("aten.lerp.Scalar", (floats(*shape), floats(*shape), 0.3))
        yield Sample("aten.lerp.Tensor", (floats(*shape), floats(*shape), floats(low=0.1, high=0.9)))
        yield Sample("aten.lerp.Tensor", (floats(*shape), floats(*shape), floats(*shape, low=0.1, high=0.9)))


def chosen() -> Iterator[Sample]:
    for condition in ((7, 4), (7, 1), ()):
        yield Sample("aten.where.self", (bools(*condition), floats(7, 4), floats(4)))
    yield Sample("aten.where.self", (bools(7, 4), ints(7, 4), ints()))
    yield Sample("aten.clamp.Tensor", (floats(7, 4), floats(4, high=0.0), floats(7, 1, low=0.0)))
    yield Sample("aten.clamp.Tensor", (floats(7, 4), None, floats(7, 1)))
    yield Sample("aten.masked_fill.Tensor", (floats(7, 4), bools(4), floats()))
    yield Sample("aten.fill.Tensor", (floats(7, 4), floats()))
    yield Sample("aten.zero", (floats(7, 4),))
    double, single = floats(7, 4), floats(7, 4, dtype=torch.float32)
    for target, source in ((double, floats(4)), (double, floats(7, 1, dtype=torch.float32)), (single, double)):
        yield Sample("aten.copy", (target, source), gradient=False)


def casts() -> Iterator[Sample]:
    pairs = (
        (floats(7, 4), torch.float32),
        (floats(7, 4, dtype=torch.float32), torch.float64),
        (floats(7, 4, dtype=torch.bfloat16), torch.float32),
        (floats(7, 4), torch.int64),
        (ints(7, 4, dtype=torch.int32), torch.int64),
        (ints(7, 4), torch.float64),
        (bools(7, 4), torch.float32),
    )
    for tensor, dtype in pairs:
        yield Sample("aten._to_copy", (tensor,), {"dtype": dtype})
        yield Sample("prims.convert_element_type", (tensor, dtype), gradient=False)


def several() -> Iterator[Sample]:
    """Ops with several results, or with dims of their own."""
    for shape in SHAPES:
        x, grad = floats(*shape), floats(*shape)
        yield Sample("aten.log_sigmoid_forward", (x,))
        yield Sample("aten.log_sigmoid_backward", (grad, x, floats(*shape, low=0.1, high=1.0)))
        yield Sample("aten._prelu_kernel", (x, floats(1, shape[1])))
        yield Sample("aten._prelu_kernel_backward", (grad, x, floats(1, shape[1])))
    for shape, dim in (((7, 6), -1), ((6, 7), 0), ((3, 4, 2), 1)):
        half = [n // 2 if i == dim % len(shape) else n for i, n in enumerate(shape)]
        yield Sample("aten.glu", (floats(*shape), dim))
        yield Sample("aten.glu_backward", (floats(*half), floats(*shape), dim))


def samples() -> Iterator[Sample]:
    for family in (unary, binary, backward, sums, chosen, casts, several):
        yield from family()
