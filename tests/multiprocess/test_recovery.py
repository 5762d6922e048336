"""A worker dies in mid-training: one error, and training goes on from the last complete step, or from a checkpoint."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import samite
from samite import Shard
from samite.errors import WorkerDied, WorkerError
from samite.runtime.session import session_of

pytestmark = pytest.mark.multiprocess


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def descendants(pid: int) -> list[int]:
    """Processes below a process, outermost first."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = [int(word) for word in file.read().split()]
    return children + [d for child in children for d in descendants(child)]


class Run:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.x, self.y = torch.randn(6, 4), torch.randn(6, 3)
        batch = {"dp": Shard(0)}
        self.mesh = samite.mesh("cpu", engine="local", dp=2)
        self.compiled = samite.compile(step, mesh=self.mesh, placements={"x": batch, "y": batch})
        self.before = set(descendants(os.getpid()))

    def __call__(self) -> torch.Tensor:
        return self.compiled(self.model, self.optimizer, self.x, self.y)

    def kill_a_worker(self) -> None:
        worker = max(set(descendants(os.getpid())) - self.before)
        os.kill(worker, signal.SIGKILL)

    def plain(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The same on one device, from the current state."""
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return model, optimizer

    def follows(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
        for _ in range(steps):
            loss, expected = self(), step(model, optimizer, self.x, self.y)
            torch.testing.assert_close(loss.detach().clone(), expected.detach())
        torch.testing.assert_close(self.model.weight.detach().clone(), model.weight.detach())


@pytest.fixture
def run() -> Iterator[Run]:
    made = Run()
    yield made
    session_of(made.mesh).close()


def test_training_goes_on_from_the_last_complete_step(run: Run) -> None:
    for _ in range(3):
        run().item()
    model, optimizer = run.plain()
    run.kill_a_worker()
    started = time.monotonic()
    with pytest.raises(WorkerDied, match="SIGKILL"):
        run().item()
    assert time.monotonic() - started < 5
    torch.testing.assert_close(run.model.weight.detach().clone(), model.weight.detach())
    run.follows(model, optimizer)


def test_a_death_in_the_first_step_leaves_the_optimizer_as_it_was(run: Run) -> None:
    forward = samite.compile(lambda model, x: model(x), mesh=run.mesh)
    forward(run.model, run.x).tolist()  # the workers are there, the optimizer has no state yet
    model, optimizer = run.plain()
    run.kill_a_worker()
    with pytest.raises(WorkerDied):
        run()
    assert not run.optimizer.state
    run.follows(model, optimizer)


def test_a_closed_session_has_lost_its_values_and_takes_a_checkpoint(run: Run) -> None:
    for _ in range(2):
        run()
    checkpoint = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict()))
    model, optimizer = run.plain()
    run()
    session_of(run.mesh).close()
    with pytest.raises(WorkerError, match=r"lost with the workers(.|\n)*load_state_dict"):
        run.model.weight.tolist()
    run.model.load_state_dict(checkpoint[0])
    run.optimizer.load_state_dict(checkpoint[1])
    run.follows(model, optimizer)
