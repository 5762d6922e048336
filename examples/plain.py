"""Train a small classifier on points of a spiral: plain PyTorch on one device."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def spiral(points: int) -> tuple[Tensor, Tensor]:
    """Noisy points on three arms (points, 2), and the arm of each (points,)."""
    arm = torch.arange(points) % 3
    radius = torch.rand(points)
    angle = 4 * radius + 2.1 * arm + 0.1 * torch.randn(points)
    return torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1), arm


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(100):
    inputs, labels = spiral(256)
    loss = train_step(model, optimizer, inputs, labels)
    if step % 20 == 19:
        print(f"step {step + 1:3d}  loss {loss.item():.4f}")

inputs, labels = spiral(1000)
accuracy = (model(inputs).argmax(dim=1) == labels).float().mean()
print(f"accuracy {accuracy.item():.3f}")
