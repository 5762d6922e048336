"""`overlap`: the same training step, with its gradients reduced beside the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lockstep_training import DATA_PARALLEL, count_collectives, train_both


class Loss(nn.Sequential):
    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return (super().forward(inputs) - targets).square().mean()


def make() -> Loss:
    torch.manual_seed(0)
    return Loss(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))


def batches(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(6, 8, generator=generator), torch.randn(6, 8, generator=generator)


@pytest.fixture(autouse=True)
def overlapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_OVERLAP", "1")
    monkeypatch.setenv("SAMITE_BUCKET_BYTES", "300")  # two layers' gradients fill one


@pytest.mark.parametrize("dp", [2, 4])  # evenly, and with an empty shard
def test_training_is_that_of_one_device(dp: int) -> None:
    train_both(make(), batches, {"dp": dp}, DATA_PARALLEL)


def test_buckets_are_under_way_while_backward_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    overlapped = count_collectives(make(), batches, {"dp": 2}, DATA_PARALLEL)
    monkeypatch.setenv("SAMITE_OVERLAP", "0")
    assert count_collectives(make(), batches, {"dp": 2}, DATA_PARALLEL) == overlapped
