"""Pointwise ops: every dim is free, operands broadcast. `linear` says which operands may be partial sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from samite.ir.graph import Op
from samite.rules.language import rule

UNARY = """
    abs acos acosh asin asinh atan atanh bitwise_not ceil celu cos cosh digamma elu erf erfc erfinv exp exp2
    expm1 floor frac gelu hardshrink hardsigmoid hardswish hardtanh isinf isnan leaky_relu lgamma log log10 log1p
    log2 logical_not logit mish nan_to_num polygamma reciprocal relu relu6 round round.decimals rsqrt selu sgn sigmoid
    sign signbit silu sin sinc sinh softplus softshrink sqrt square tan tanh threshold trunc
    add.Scalar sub.Scalar rsub.Scalar pow.Scalar pow.Tensor_Scalar fmod.Scalar remainder.Scalar floor_divide.Scalar
    div.Scalar_mode clamp clamp_max clamp_min bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar
    eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar fill.Scalar
"""
SPECIAL_UNARY = """
    airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx i0e i1 i1e log_ndtr modified_bessel_i0 modified_bessel_i1
    modified_bessel_k0 modified_bessel_k1 ndtri scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0
"""
LINEAR_UNARY = "alias clone deg2rad detach div.Scalar mul.Scalar neg rad2deg"
BINARY = """
    atan2 bitwise_and.Tensor bitwise_left_shift.Tensor bitwise_or.Tensor bitwise_right_shift.Tensor bitwise_xor.Tensor
    clamp_max.Tensor clamp_min.Tensor copysign.Tensor eq.Tensor fmax fmin ge.Tensor gt.Tensor heaviside hypot le.Tensor
    logaddexp logaddexp2 logical_and logical_or logical_xor lt.Tensor maximum minimum ne.Tensor nextafter
    pow.Tensor_Tensor where.ScalarOther where.ScalarSelf masked_fill.Scalar _prelu_kernel
"""
FURTHER_UNARY = "angle copysign.Scalar i0 isneginf isposinf mvlgamma"
EXTREMES = "maximum minimum clamp_max.Tensor clamp_min.Tensor"
FURTHER_BINARY = "gcd igamma igammac lcm"
POLYNOMIALS = """
    chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w hermite_polynomial_h
    hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p shifted_chebyshev_polynomial_t
    shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w
"""
QUOTIENTS = "div.Tensor_mode floor_divide fmod.Tensor remainder.Tensor"
# The gradient, operand 0, is a factor of every term.
BACKWARD = """
    elu_backward gelu_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward
    logit_backward mish_backward sigmoid_backward silu_backward softplus_backward softshrink_backward
    hardshrink_backward tanh_backward threshold_backward
"""


RISING = """
    add.Scalar atan ceil clamp clamp_max clamp_min erf exp exp2 expm1 floor hardsigmoid hardshrink hardtanh relu relu6
    round selu sigmoid sign softshrink sub.Scalar tanh trunc
"""
CLOSED = "ceil clamp clamp_max clamp_min floor hardtanh relu relu6 round sign trunc"
"""Those of them that take the ends of the integers' range."""


def of_floats(sets: str) -> Callable[[Op], str]:
    """Operand sets of ops on floating numbers: the ends of the integers' range overflow."""
    return lambda op: sets if all(t.dtype.startswith(("float", "bfloat")) for t in (*op.operands, *op.results)) else ""


def scaled(positive: bool) -> Callable[[Op], str]:
    """The operand of a product with a number, if that is positive (negative)."""

    def factor(op: Op) -> str:
        number = op.literals["other"]
        return of_floats("0")(op) if (number > 0 if positive else number < 0) else ""

    return factor


def terms(sets: str, otherwise: str) -> Callable[[Op], str]:
    """Operand sets of a sum whose second term has a positive factor, and of any other."""
    return lambda op: of_floats(sets if op.literals.get("alpha", 1) > 0 else otherwise)(op)


def exact(op: Op, operand: int = 0) -> bool:
    """Whether a cast of the operand to the result's dtype rounds nothing, so that it commutes with a sum."""
    source, target = op.operands[operand].dtype, op.results[0].dtype
    wider = {
        "bfloat16": ("float32", "float64"),
        "float16": ("float32", "float64"),
        "float32": ("float64",),
        "int8": ("int16", "int32", "int64"),
        "int16": ("int32", "int64"),
        "int32": ("int64",),
    }
    return source == target or target in wider.get(source, ())


def exact_cast(op: Op) -> str:
    return "all" if exact(op) else ""


MONOTONE: Mapping[str, Mapping[str, Any]] = {
    **{name: {"increasing": "all"} for name in ("alias", "clone", "detach")},
    **{name: {"increasing": of_floats("0")} for name in ("deg2rad", "rad2deg")},
    **{name: {"increasing": scaled(True), "decreasing": scaled(False)} for name in ("mul.Scalar", "div.Scalar")},
    "neg": {"decreasing": of_floats("0")},
}


def exact_copy(op: Op) -> str:
    return "1" if exact(op, 1) else ""


for name in (*UNARY.split(), *FURTHER_UNARY.split(), *(f"special_{name}" for name in SPECIAL_UNARY.split())):
    rising = "0" if name in CLOSED.split() else of_floats("0") if name in RISING.split() else ""
    rule(name, "*a -> *a", increasing=rising)
for name in LINEAR_UNARY.split():
    rule(name, "*a -> *a", linear="all", **MONOTONE.get(name, {}))
for name in (BINARY + FURTHER_BINARY).split():
    rule(name, "*a, *a -> *a", increasing="each" if name in EXTREMES.split() else "")
for name in ("special_zeta", "special_xlog1py"):
    rule(name, "*a, *a -> *a")
    rule(f"{name}.other_scalar", "*a -> *a")
    rule(f"{name}.self_scalar", "*a -> *a")
for name in (f"special_{kind}" for kind in POLYNOMIALS.split()):  # kernels loop up to the degree, operand 1
    rule(name, "*a, *a -> *a", padding={1: 0.0})
    rule(f"{name}.n_scalar", "*a -> *a")
    rule(f"{name}.x_scalar", "*a -> *a", padding={0: 0.0})
for name in QUOTIENTS.split():
    rule(name, "*a, *a -> *a", padding={1: 1})
for name in BACKWARD.split():
    rule(name, "*a, *a -> *a", linear="0")

rule("add.Tensor", "*a, *a -> *a", linear="all", increasing=terms("0 | 1", "0"))
rule("sub.Tensor", "*a, *a -> *a", linear="all", increasing=of_floats("0"), decreasing=terms("1", ""))
rule("rsub.Tensor", "*a, *a -> *a", linear="all")
rule("mul.Tensor", "*a, *a -> *a", linear="each")
rule("div.Tensor", "*a, *a -> *a", linear="0")
# No product with a logarithm is linear: 0 times an infinite one is 0, and terms of 0 would make inf - inf.
rule("xlogy.Tensor", "*a, *a -> *a")
rule("xlogy.Scalar_Other", "*a -> *a")
rule("addcmul", "*a, *a, *a -> *a", linear="0 1 | 0 2")
rule("addcdiv", "*a, *a, *a -> *a", linear="0 1")
rule("lerp.Scalar", "*a, *a -> *a", linear="all")
rule("lerp.Tensor", "*a, *a, *a -> *a", linear="0 1")
rule("where.self", "*a, *a, *a -> *a", linear="1 2", increasing="1 | 2 | 1 2")
rule("clamp.Tensor", "*a, ?(*a), ?(*a) -> *a", increasing="each")
rule("masked_fill.Tensor", "*a, *a, . -> *a")
rule("copy", "*a, *a -> *a", linear=exact_copy)
rule("fill.Tensor", "*a, . -> *a", linear="1")
rule("zero", "*a -> *a")
rule("_to_copy", "*a -> *a", linear=exact_cast)
rule("prims::convert_element_type", "*a -> *a", linear=exact_cast)
rule("log_sigmoid_forward", "*a -> *a, *a")
rule("log_sigmoid_backward", "*a, *a, *a -> *a", linear="0")
rule("_prelu_kernel_backward", "*a, *a, *a -> *a, *a", linear="0")
rule("glu", "*a (K d) -> *a d", at="dim")
rule("glu_backward", "*a d, *a (K d) -> *a (K d)", at="dim", linear="0")
rule("frexp.Tensor", "*a -> *a, *a")
rule("rrelu_with_noise_backward", "*a, *a, *a -> *a", linear="0")

for name in ("_conj", "_conj_physical"):
    rule(name, "*a -> *a", linear="all")
rule("complex", "*a, *a -> *a", linear="all")
rule("polar", "*a, *a -> *a", linear="0")
rule("view_as_real", "*a -> *a C", linear="all")
rule("view_as_complex", "*a C -> *a", linear="all")
