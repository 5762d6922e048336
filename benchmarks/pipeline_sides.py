"""The ways to train in a pipeline of two stages that `pipeline` compares, and its stages alone, to be timed."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models import GPT
from benchmarks.peers import Place, Step
from benchmarks.workload import LEARNING_RATE, Workload, train_step

__all__ = ["MICROBATCHES", "STAGES", "FirstStage", "LastStage", "samite_pipeline", "stage_loss", "torch_pipelining"]

STAGES = 2
MICROBATCHES = 8


class FirstStage(nn.Module):
    """Embeddings and the first half of a GPT's blocks, tokens to activations."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.tokens, self.positions = model.tokens, model.positions
        self.blocks = model.blocks[: len(model.blocks) // 2]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return x


class LastStage(nn.Module):
    """The other half of the blocks and the head, activations to logits."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.blocks = model.blocks[len(model.blocks) // 2 :]
        self.norm, self.head = model.norm, model.head

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def stage_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def torch_pipelining(workload: Workload, place: Place) -> Step:
    """One stage a process, 1F1B; only the last rank learns the loss."""
    import torch.distributed
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.distributed.init_process_group("gloo", init_method=place.rendezvous, rank=place.rank, world_size=place.ranks)
    model = workload.model()
    part = LastStage(model) if place.rank else FirstStage(model)
    stage = PipelineStage(part, place.rank, place.ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=stage_loss)
    optimizer = torch.optim.AdamW(part.parameters(), lr=LEARNING_RATE, foreach=True)
    tokens, targets = workload.data()

    def step() -> float | None:
        losses: list[Tensor] = []
        if place.rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=targets, losses=losses, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().item() if losses else None

    return step


def samite_pipeline(workload: Workload, place: Place, *, mode: Literal["aten", "inductor"]) -> Step:
    """The caller of two workers, a stage each, 1F1B; the step is that of one process."""
    import samite

    mesh = samite.mesh("cpu", engine="local", options={"threads_per_worker": 1}, pp=STAGES)
    options: dict[str, Any] = {"microbatches": MICROBATCHES, "schedule": "1f1b"}
    compiled = samite.compile(train_step, mesh=mesh, mode=mode, **options)
    model = workload.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    tokens, targets = workload.data()
    return lambda: compiled(model, optimizer, tokens, targets).item()
