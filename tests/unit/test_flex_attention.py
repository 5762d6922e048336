"""Flex attention in captured functions, against attention written by hand: torch has no gradients of it on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import samite
from samite import Shard

LENGTH = 16
Step = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


MADE_BEFORE = create_block_mask(causal, 1, 1, LENGTH, LENGTH, device="cpu")


def attend(q: Tensor, k: Tensor, v: Tensor, scored: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    row, column = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None]
    return scored(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), row, column).softmax(-1) @ v


def sloped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(i >= j, s + 0.1 * (i - j), float("-inf"))

    return flex_attention(q, k, v, score_mod=score)


def sloped_by_hand(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return attend(q, k, v, lambda s, i, j: torch.where(i >= j, s + 0.1 * (i - j), float("-inf")))


def masked(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return flex_attention(q, k, v, block_mask=create_block_mask(causal, 1, 1, LENGTH, LENGTH, device="cpu"))


def masked_before(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return flex_attention(q, k, v, block_mask=MADE_BEFORE)


def masked_by_hand(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Reads a tensor that is trained, at places that depend on the head."""
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i - j])


def biased_by_hand(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return attend(q, k, v, lambda s, i, j: s + bias[:, i - j])


def grouped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return flex_attention(q, k[:, :2], v[:, :2], enable_gqa=True)


def grouped_by_hand(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)


CASES: list[tuple[Step, Step]] = [
    (sloped, sloped_by_hand),
    (masked, masked_by_hand),
    (masked_before, masked_by_hand),
    (biased, biased_by_hand),
    (grouped, grouped_by_hand),
]


@pytest.mark.parametrize(("flex", "by_hand"), CASES, ids=[flex.__name__ for flex, _ in CASES])
@pytest.mark.parametrize("placements", [{"q": {"dp": Shard(0), "tp": Shard(1)}}, {"[kv]": {"tp": Shard(1)}}], ids=str)
def test_flex_attention(flex: Step, by_hand: Step, placements: Any) -> None:
    torch.manual_seed(0)
    shapes = [(2, 4, LENGTH, 8)] * 3 + [(4, LENGTH)]
    here = [torch.randn(shape, requires_grad=True) for shape in shapes]
    there = [x.detach().clone().requires_grad_() for x in here]

    def step(attention: Step, *given: Tensor) -> Tensor:
        y = attention(*given)
        y.sin().sum().backward()
        return y

    want = step(by_hand, *here)
    compiled = samite.compile(
        lambda q, k, v, bias: step(flex, q, k, v, bias),
        mesh=samite.mesh("cpu", dp=2, tp=2, engine="lockstep"),
        placements=placements,
    )
    torch.testing.assert_close(torch.as_tensor(compiled(*there)), want, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(there, here, strict=True):
        if theirs.grad is not None:
            assert mine.grad is not None
            torch.testing.assert_close(torch.as_tensor(mine.grad), theirs.grad, rtol=1e-4, atol=1e-5)
