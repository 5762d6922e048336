"""Tensor parallelism: the weights of each block are split over two processes, as Megatron-LM does.

Two placements are enough: the columns of `qkv` and `up`. That `proj` and `down` are split by rows, the biases with
their weights and the optimizer's state with its parameters, follows by least communication.

    python examples/tensor_parallel.py
    samite explain examples/tensor_parallel.py:train_step
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import samite
from samite import Shard


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.norm2, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, dim = x.shape
        qkv = self.qkv(self.norm1(x)).split(dim, dim=-1)
        q, k, v = (t.view(batch, time, self.heads, -1).transpose(1, 2) for t in qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, time, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


mesh = samite.mesh("cpu", tp=2)


@samite.compile(mesh=mesh, placements={"model.*.qkv.weight": {"tp": Shard(0)}, "model.*.up.weight": {"tp": Shard(0)}})
def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


torch.manual_seed(0)
teacher = Block(dim=64, heads=4).requires_grad_(False)  # to be imitated
model = nn.Sequential(*(Block(dim=64, heads=4) for _ in range(2)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(60):
    inputs = torch.randn(8, 32, 64)
    loss = train_step(model, optimizer, inputs, teacher(inputs))
    if step % 10 == 9:
        print(f"step {step + 1:2d}  loss {loss.item():.4f}")
