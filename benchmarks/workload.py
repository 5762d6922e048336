"""What every side does in a step: a GPT of one size, its data, and the loop body of an ordinary script."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.models import GPT

__all__ = ["LEARNING_RATE", "Workload", "train_step"]

LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Workload:
    """The defaults are those of the figures to reach. Equal workloads give equal weights and data in every process."""

    layers: int = 4
    dim: int = 128
    heads: int = 4
    vocab: int = 512
    block: int = 128
    batch: int = 8
    seed: int = 0

    def model(self) -> GPT:
        torch.manual_seed(self.seed)
        return GPT(self.vocab, self.block, self.dim, self.heads, self.layers)

    def data(self) -> tuple[Tensor, Tensor]:
        """Random tokens and the ones that follow them, both int64 (batch, block)."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        text = torch.randint(self.vocab, (self.batch, self.block + 1), generator=generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def __str__(self) -> str:
        return (
            f"GPT d {self.dim}, {self.layers} layers, {self.heads} heads, vocabulary {self.vocab}, "
            f"batch {self.batch} × {self.block}, AdamW"
        )


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor) -> Tensor:
    loss = model(tokens, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
