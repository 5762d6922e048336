"""The work by which a device is measured: ops of each kind at sizes from what starting them takes to what they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from samite.ir.graph import overload

__all__ = ["SQUARES", "VECTORS", "Body", "Work", "device_work"]

Body = Callable[[torch.Tensor], torch.Tensor]
Work = tuple[float, tuple[int, ...], Body]
"""Its size as `DeviceSpec.times` counts, the shape of what it takes and gives, and what it does."""

SQUARES = (16, 128, 512)
VECTORS = (1 << 8, 1 << 14, 1 << 18, 1 << 22)
"""Elements, of float32."""
ROW = 128
"""Elements that are normalized together."""
HEADS = ((1, 1, 16, 16), (4, 4, 128, 32))
"""Batch, heads, time and width of attention."""


def device_work() -> Mapping[str, Sequence[Work]]:
    """By kind of op (`samite.topology.KINDS`), by ascending size."""
    vectors = [(4.0 * n, (n,)) for n in VECTORS]
    scores = [(4.0 * b * h * t * t * e, (b, h, t, e)) for b, h, t, e in HEADS]
    return {
        "product": [(2.0 * n**3, (n, n), lambda x: x @ x) for n in SQUARES],
        "attention": [(operations, shape, _attend) for operations, shape in scores],
        "attention_backward": [(2.5 * operations, shape, _attend_backward) for operations, shape in scores],
        "function": [(2 * nbytes, shape, torch.tanh) for nbytes, shape in vectors[:-1]],
        "gelu": [(2 * nbytes, shape, _gelu) for nbytes, shape in vectors[:-1]],
        "norm": [(2 * nbytes, (n // ROW, ROW), _normalize) for nbytes, (n,) in vectors[:-1]],
        "update": [(7 * nbytes, shape, _update) for nbytes, shape in vectors],
        "pass": [(2 * nbytes, shape, torch.neg) for nbytes, shape in vectors],
    }


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


def _normalize(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x, -1)


def _attend(x: torch.Tensor) -> torch.Tensor:
    return overload("samite.sdpa")(x, x, x, None, True, 1.0, False)[0]


def _attend_backward(x: torch.Tensor) -> torch.Tensor:
    logsumexp = x.new_zeros(x.shape[:-1])
    return overload("samite.sdpa_backward")(x, x, x, x, None, x, logsumexp, True, 1.0, False)[0]


def _update(x: torch.Tensor) -> torch.Tensor:
    step, numbers = torch.ones(()), torch.full((5,), 0.5, dtype=torch.float64)
    return overload("samite.adam")(x, x, x, x, step, numbers, True, True, False)[0]
