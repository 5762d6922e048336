"""Small torch functions that between them use every kind of argument and result that an op can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import samite.ir.random
import samite.ir.sdpa  # both register the ops that are used here

__all__ = ["FUNCTIONS"]

aten, sdpa, uniform = torch.ops.aten, samite.ir.sdpa.sdpa, samite.ir.random.philox_uniform


def _convolution_backward(grad: Tensor, x: Tensor, kernel: Tensor) -> tuple[Tensor | None, ...]:
    """Only the weight's gradient is asked for; the others are None."""
    mask = [False, True, False]
    return aten.convolution_backward(grad, x, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)


def _functions() -> Iterator[tuple[str, Callable[..., Any], tuple[Tensor, ...]]]:
    torch.manual_seed(0)
    x, y, cube = torch.randn(5, 3), torch.randn(5, 3), torch.randn(5, 3, 3)
    index, few, mask = torch.randint(0, 3, (5, 2)), torch.randint(0, 3, (2,)), torch.rand(5, 3) > 0.5
    image, kernel, grad = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 3, 3), torch.randn(2, 2, 4, 4)
    heads = torch.randn(1, 2, 4, 8)

    # ints, floats, bools, strings and None as arguments
    yield "alpha", lambda x, y: torch.add(x, y, alpha=2), (x, y)
    yield "reversed operands", lambda x: 1 - x + 2**x, (x,)
    yield "int and float scalars", lambda x: (x * 3, x * 3.0, x**2, x**2.0), (x,)
    yield "integer arithmetic", lambda i: (i * 3, i // 2, i % 2, i * 0.5), (index,)
    yield "a bool as a scalar", lambda m: m.masked_fill(m, True), (mask,)
    yield "a bool added", lambda x: x + True, (x,)
    yield "infinities and nan", lambda x: x.masked_fill(x > 0, float("-inf")) + float("inf") * (x > 1), (x,)
    yield "negative zero", lambda x: 1 / (x.abs() * -0.0), (x,)
    yield "a string", lambda x: F.gelu(x, approximate="tanh"), (x,)
    yield "a rounding mode", lambda x: torch.div(x, 2, rounding_mode="floor"), (x,)
    yield "optional scalars", lambda x: (x.clamp(min=0.0), x.clamp(max=0.5), x.clamp(-1, 1)), (x,)
    yield "optional tensors", lambda x, k: F.conv2d(x, k, padding=1), (image, kernel)
    yield "keyword-only arguments", lambda x: x.var(1, correction=0), (x,)

    # dtypes, layouts and memory formats, which the dialect writes as ints
    for dtype in ("float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"):
        yield f"to {dtype}", lambda x, dtype=dtype: x.abs().to(getattr(torch, dtype)), (x,)
    yield "a sum in float64", lambda x: (x.sum(dtype=torch.float64), x.sum(0)), (x,)
    yield "channels last", lambda x: x.clone(memory_format=torch.channels_last), (image,)
    yield "contiguous", lambda x: x.t().contiguous().view(-1), (x,)
    yield "zeros like, of ints", lambda x: torch.zeros_like(x, dtype=torch.int64), (x,)

    # values from nothing
    yield "full", lambda x: (torch.full((2, 3), 7), torch.full((), 0.5), torch.full((2,), True)), (x,)
    yield "new full", lambda x: (x.new_full((2,), True, dtype=torch.bool), x.new_zeros(2)), (x,)
    yield "ones of bool", lambda x: torch.ones(2, 3, dtype=torch.bool), (x,)
    yield "ranges", lambda x: (torch.arange(3), torch.arange(0.0, 1.5, 0.5), torch.arange(1, 9, 3)), (x,)
    yield "a scalar tensor", lambda x: aten.scalar_tensor(3.0, dtype=torch.float64) + x, (x,)
    yield "where with scalars", lambda x: (torch.where(x > 0, 1.0, 0.0), torch.where(x > 0, x, 0.0)), (x,)
    yield "random numbers", lambda seed: uniform(seed, 3, [5, 3]), (torch.tensor(7),)

    # lists in and out
    yield "lists of ints", lambda x: (x.sum((0, 1)), x.permute(1, 0), x.expand(2, 5, 3)), (x,)
    yield "lists of tensors", lambda x, y: (torch.cat([x, y, x], -1), torch.stack([x, y], 1)), (x, y)
    yield "optional lists of tensors", lambda x, i: (x[:, i], x[i], x[i, :, i]), (cube, few)
    yield "an index put", lambda x, i: x.index_put((i,), torch.ones(2, 3), accumulate=True), (x, few)
    yield "a split", lambda x: x.split([1, 2], 1), (x,)
    yield "half of a split", lambda x: x.split([1, 2], 1)[1], (x,)
    yield "a split whose parts are used apart", lambda x: (p := x.split(2), p[2].exp(), p[0] - p[1])[1:], (x,)
    yield "chunks", lambda x: (*x.chunk(2), *x.unbind(1), *x.tensor_split(3), *x.tensor_split([1, 2])), (x,)

    # several results, and results that are left out
    yield "top and sort", lambda x: (*x.topk(2), *x.sort(-1), *x.max(1)), (x,)
    yield "one of several results", lambda x: x.max(1)[1], (x,)
    yield "a variance and a mean", lambda x: torch.var_mean(x, 1), (x,)
    yield "layer norm", lambda x: aten.native_layer_norm(x, [3], None, None, 1e-5), (x,)
    yield "convolution backward", lambda g, x, k: _convolution_backward(g, x, k)[1], (grad, image, kernel)
    yield "attention", lambda q: sdpa(q, q, q, None, True, 0.5, False), (heads,)
    yield "an argument and a result twice", lambda x, y: (x, y.exp(), x), (x, y)
    yield "no use of an argument", lambda x, y: y.exp(), (x, y)

    # views and indexing
    yield "slices", lambda x: (x[1:4:2, -2:], x[-1], x[:, None]), (x,)
    yield "gather and scatter", lambda x, i: (x.gather(1, i), x.scatter(1, i, 1.0), F.embedding(i, x)), (x, index)
    yield "roll, flip, triangles", lambda x: (x.roll(1, 0), x.flip(1), x.triu(1), x.tril(-1)), (x,)
    yield "padding", lambda x: F.pad(x, (1, 2), value=3.0), (x,)
    yield "logic", lambda x: (x > 0) & (x < 1) | ~(x > 2), (x,)
    yield "pooling", lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)), (image,)
    yield "interpolation", lambda x: F.interpolate(x, scale_factor=2.0), (image,)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    name: (function, arguments) for name, function, arguments in _functions()
}
"""By what is special about it: a function and arguments for it."""
