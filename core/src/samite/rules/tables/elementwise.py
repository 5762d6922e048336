"""Pointwise ops: every dim is free, operands broadcast. `linear` says which operands may be partial sums."""

from __future__ import annotations

from samite.ir.graph import Op
from samite.rules.language import rule

UNARY = """
    abs acos acosh asin asinh atan atanh bitwise_not ceil clamp clamp_max clamp_min cos cosh digamma elu erf erfc erfinv
    exp exp2 expm1 floor gelu hardsigmoid hardswish hardtanh isinf isnan leaky_relu lgamma log log10 log1p log2
    log_sigmoid_forward logical_not logit mish nan_to_num pow.Tensor_Scalar reciprocal relu relu6 round rsqrt sgn sigmoid
    sign signbit silu sin sinh softplus sqrt square tan tanh trunc add.Scalar sub.Scalar rsub.Scalar pow.Scalar
    fmod.Scalar remainder.Scalar floor_divide.Scalar div.Scalar_mode bitwise_and.Scalar bitwise_or.Scalar
    eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar
"""
LINEAR_UNARY = "alias clone detach lift_fresh_copy mul.Scalar div.Scalar neg"
BINARY = """
    atan2 bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor clamp.Tensor clamp_max.Tensor clamp_min.Tensor
    copysign.Tensor div.Tensor_mode eq.Tensor floor_divide fmax fmin fmod.Tensor ge.Tensor gt.Tensor hypot le.Tensor
    logaddexp logaddexp2 logical_and logical_or logical_xor lt.Tensor maximum minimum ne.Tensor nextafter
    pow.Tensor_Tensor remainder.Tensor xlogy.Tensor
"""
# The gradient, operand 0, is a factor of every term.
BACKWARD = """
    elu_backward gelu_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward
    logit_backward mish_backward sigmoid_backward silu_backward softplus_backward tanh_backward threshold_backward
"""


def widening(op: Op) -> str:
    """A cast commutes with a sum only if it rounds nothing."""
    order = ("bfloat16", "float16", "float32", "float64")
    source, target = op.operands[0].dtype, op.results[0].dtype
    exact = source == target or (
        source in order and target in order and order.index(target) > max(order.index(source), 1)
    )
    return "all" if exact else ""


for name in UNARY.split():
    rule(name, "*a, ?(*a), ?(*a) -> *a" if name.startswith("clamp") and "." not in name else "*a -> *a")
for name in LINEAR_UNARY.split():
    rule(name, "*a -> *a", linear="all")
for name in BINARY.split():
    rule(name, "*a, *a, ?(*a) -> *a" if name == "clamp.Tensor" else "*a, *a -> *a")
for name in BACKWARD.split():
    rule(name, "*a, *a -> *a", linear="0")

rule("add.Tensor", "*a, *a -> *a", linear="all")
rule("sub.Tensor", "*a, *a -> *a", linear="all")
rule("mul.Tensor", "*a, *a -> *a", linear="each")
rule("div.Tensor", "*a, *a -> *a", linear="0")
rule("addcmul", "*a, *a, *a -> *a", linear="0 1 | 0 2")
rule("addcdiv", "*a, *a, *a -> *a", linear="0 1")
rule("lerp.Scalar", "*a, *a -> *a", linear="all")
rule("lerp.Tensor", "*a, *a, *a -> *a", linear="0 1")
rule("where.self", "*a, *a, *a -> *a", linear="1 2")
rule("where.ScalarSelf", "*a, *a -> *a")
rule("where.ScalarOther", "*a, *a -> *a")
rule("masked_fill.Scalar", "*a, *a -> *a")
rule("masked_fill.Tensor", "*a, *a, . -> *a")
rule("_to_copy", "*a -> *a", linear=widening)
rule("prims.convert_element_type", "*a -> *a", linear=widening)
