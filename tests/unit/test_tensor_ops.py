"""Ops on `samite.Tensor` where this process is a rank: values and gradients of one device, whatever the layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rank_threads import check, mesh_of
from samite import Partial, Replicate, Shard

X, Y, W, B = torch.randn(6, 8), torch.randn(6, 8), torch.randn(8, 5), torch.randn(8)
TARGET = torch.tensor([0, 3, 7, -100, 2, 5])

OPS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, w, b: x + y,
    "add a number": lambda x, y, w, b: x + 2.5,
    "a number minus": lambda x, y, w, b: 1 - x,
    "broadcast": lambda x, y, w, b: x * b,
    "matmul": lambda x, y, w, b: torch.matmul(x, w),
    "x @ x.T": lambda x, y, w, b: torch.matmul(x, x.T),
    "chain": lambda x, y, w, b: torch.relu(x @ w) @ w.t() + b,
    "mean": lambda x, y, w, b: (x.mean(), x.mean(0), x.var(1), x.std(0, keepdim=True)),
    "softmax": lambda x, y, w, b: (x.softmax(-1), F.log_softmax(x, 0)),
    "cross entropy": lambda x, y, w, b: F.cross_entropy(x, TARGET),
    "layer norm": lambda x, y, w, b: F.layer_norm(x, (8,), b, b),
    "views": lambda x, y, w, b: (x.view(-1), x.view(3, 2, 8).transpose(0, 1), x.reshape(2, 24), x.flatten()),
    "slices": lambda x, y, w, b: (x[1:4], x[:, 2], x[::2, 1:-1], x[-1], x[..., None]),
    "cat and split": lambda x, y, w, b: (torch.cat([x, y], 1), *x.split(3, 0), torch.stack([x, y]), *x.chunk(2, 1)),
    "where": lambda x, y, w, b: torch.where(x > 0, x, y),
    "norm": lambda x, y, w, b: (x.norm(), torch.linalg.vector_norm(y, 1), x.norm(float("inf"))),
    "max": lambda x, y, w, b: (x.amax(1), x.max(), x.max(0).values),
    "index": lambda x, y, w, b: x[torch.tensor([0, 4, 4])],
    "einsum": lambda x, y, w, b: torch.einsum("ij,jk->ki", x, w),
    "gelu": lambda x, y, w, b: F.gelu(x),
    "mse": lambda x, y, w, b: F.mse_loss(x, y),
    "power": lambda x, y, w, b: (x**2, x.abs().sqrt(), (x * 0.1).exp()),
    "plain operand": lambda x, y, w, b: x * torch.arange(8.0) + torch.ones(6, 1),
    "cumsum": lambda x, y, w, b: x.cumsum(0),
    "like": lambda x, y, w, b: (torch.zeros_like(x) + x, torch.ones_like(y) * y, x.new_full((3,), 2.0)),
    "clone": lambda x, y, w, b: x.clone() + x.contiguous(),
    "dtype": lambda x, y, w, b: (x.double() + y, (x * 10).int().sum()),
}
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "both": {"x": {"dp": Shard(0), "tp": Shard(1)}, "w": {"tp": Shard(0)}, "b": {"tp": Shard(0)}},
    "crossed": {"x": {"dp": Shard(1)}, "y": {"tp": Shard(0)}, "w": {"dp": Shard(1)}},
    "partial": {"x": {"dp": Partial()}, "y": {"tp": Partial(), "dp": Shard(1)}, "b": {"dp": Replicate()}},
    "twice": {"x": {"dp": Shard(0), "tp": Shard(0)}, "w": {"dp": Shard(0), "tp": Shard(0)}},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
def test_an_op_gives_what_it_gives_on_one_device(op: str, layout: str) -> None:
    check(OPS[op], {"x": X, "y": Y, "w": W, "b": B}, LAYOUTS[layout], mesh_of(dp=2, tp=2), rtol=1e-4, atol=1e-5)
