"""Data parallelism: each of two processes takes half of every batch; one reduction a step sums the gradients.

python examples/data_parallel.py
samite explain examples/data_parallel.py:train_step
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import samite
from samite import Shard

mesh = samite.mesh("cpu", dp=2)


@samite.compile(mesh=mesh, placements={"images": {"dp": Shard(0)}, "labels": {"dp": Shard(0)}})
def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 4),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

# Four kinds of images: noise, and a bright quadrant that says which kind.
for step in range(60):
    labels = torch.randint(4, (64,))
    images = torch.rand(64, 1, 16, 16)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, 8 * (label // 2) :, 8 * (label % 2) :] *= 2
    loss = train_step(model, optimizer, images, labels)
    if step % 10 == 9:
        print(f"step {step + 1:2d}  loss {loss.item():.4f}")
