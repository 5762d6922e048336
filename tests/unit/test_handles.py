"""State visibility: after the first call parameters and optimizer state lie on the workers, and every public way to
read them gives the current value."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import samite
from samite import Shard
from samite.errors import SamiteError


class Twins:
    """A model trained by Samite and its copy trained by plain PyTorch on the same batches."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.plain = copy.deepcopy(self.model)
        self.optimizer, self.plain_optimizer = (
            torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (self.model, self.plain)
        )
        self.x, self.y = torch.randn(5, 4), torch.randn(5, 3)
        batch = {"dp": Shard(0)}
        mesh = samite.mesh("cpu", engine="lockstep", dp=2)
        self.compiled = samite.compile(
            self.step, mesh=mesh, placements={"x": batch, "y": batch, "model.0.weight": {"dp": Shard(0)}}
        )

    @staticmethod
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def train(self, steps: int = 1) -> torch.Tensor:
        for _ in range(steps):
            loss = self.compiled(self.model, self.optimizer, self.x, self.y)
            expected = self.step(self.plain, self.plain_optimizer, self.x, self.y)
            torch.testing.assert_close(loss.detach().clone(), expected.detach())
        return loss

    @property
    def weight(self) -> nn.Parameter:
        return self.model[0].weight

    @property
    def expected(self) -> torch.Tensor:
        return self.plain[0].weight.detach()

    def check(self) -> None:
        for mine, theirs in zip(self.model.parameters(), self.plain.parameters(), strict=True):
            torch.testing.assert_close(torch.from_numpy(mine.detach().numpy()), theirs.detach())


@pytest.fixture
def twins() -> Twins:
    made = Twins()
    made.train(2)
    return made


def saved(model: nn.Module) -> torch.Tensor:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)["0.weight"]


READS: dict[str, Callable[[Twins], Any]] = {
    "state_dict": lambda t: t.model.state_dict()["0.weight"].clone(),
    "detach": lambda t: t.weight.detach().clone(),
    "data": lambda t: t.weight.data.clone(),
    "numpy": lambda t: torch.from_numpy(t.weight.detach().numpy()),
    "asarray": lambda t: torch.from_numpy(np.asarray(t.weight.detach())),
    "tolist": lambda t: torch.tensor(t.weight.tolist()),
    "dlpack": lambda t: torch.from_dlpack(t.weight.detach()),
    "deepcopy of the model": lambda t: copy.deepcopy(t.model)[0].weight,
    "deepcopy of the parameter": lambda t: copy.deepcopy(t.weight),
    "pickle": lambda t: pickle.loads(pickle.dumps(t.model))[0].weight,
    "torch.save": lambda t: saved(t.model),
    "arithmetic": lambda t: t.weight * 1.0,
    "view": lambda t: t.weight.view(-1)[:].view(8, 4).clone(),
    "foreach": lambda t: torch._foreach_mul([t.weight.detach()], 1.0)[0],
}


@pytest.mark.parametrize("way", READS)
def test_a_read_gives_the_current_value(twins: Twins, way: str) -> None:
    READS[way](twins)  # what an earlier read brought here must not be what a later one gives
    twins.train()
    torch.testing.assert_close(READS[way](twins).detach(), twins.expected)


def test_parameters_keep_their_identity() -> None:
    twins = Twins()
    kept = twins.weight
    twins.train(2)
    assert kept is twins.weight
    assert isinstance(kept, nn.Parameter)
    assert isinstance(kept, samite.Tensor)
    assert kept.requires_grad


def test_a_view_that_was_taken_before_a_step_sees_it(twins: Twins) -> None:
    views = [twins.weight.data, twins.weight.detach(), twins.weight.detach()[2], twins.model.state_dict()["0.weight"]]
    twins.train()
    torch.testing.assert_close(views[0].clone(), twins.expected)
    torch.testing.assert_close(views[1].clone(), twins.expected)
    torch.testing.assert_close(views[2].clone(), twins.expected[2])
    torch.testing.assert_close(views[3].clone(), twins.expected)


def test_calling_the_module_computes_with_the_current_parameters(twins: Twins) -> None:
    torch.testing.assert_close(twins.model(twins.x), twins.plain(twins.x))


def test_what_copies_hold_is_their_own(twins: Twins) -> None:
    copied, before = copy.deepcopy(twins.model), twins.expected.clone()
    twins.train()
    torch.testing.assert_close(copied[0].weight.detach(), before)
    assert type(copied[0].weight) is nn.Parameter


@pytest.mark.parametrize("way", ["data_ptr", "untyped_storage", "storage"])
def test_there_is_no_storage_to_point_at(twins: Twins, way: str) -> None:
    with pytest.raises(SamiteError, match=f"{way}.*lies on workers"):
        getattr(twins.weight, way)()


WRITES: dict[str, Callable[[nn.Module], Any]] = {
    "add_": lambda m: m[0].weight.add_(1),
    "index": lambda m: m[0].weight.__setitem__((0, 0), 7.0),
    "through a view": lambda m: m[0].weight.view(-1)[3:9].mul_(2),
    "through data": lambda m: m[0].weight.data.zero_(),
    "copy_": lambda m: m[0].weight.copy_(torch.ones(8, 4)),
    "out": lambda m: torch.mul(torch.ones(8, 4), 3.0, out=m[0].weight.data),
    "init": lambda m: nn.init.constant_(m[0].weight, 0.5),
    "foreach": lambda m: torch._foreach_add_([m[0].weight.data, m[0].bias.data], 0.25),
}


@pytest.mark.parametrize("way", WRITES)
def test_an_eager_write_counts_in_the_next_step(twins: Twins, way: str) -> None:
    with torch.no_grad():
        WRITES[way](twins.model)
        WRITES[way](twins.plain)
    torch.testing.assert_close(twins.weight.detach().clone(), twins.expected)
    twins.train(2)
    twins.check()


def test_an_eager_step_between_compiled_ones(twins: Twins) -> None:
    twins.step(twins.model, twins.optimizer, twins.x, twins.y)
    twins.step(twins.plain, twins.plain_optimizer, twins.x, twins.y)
    twins.train(2)
    twins.check()


def test_load_state_dict_in_mid_training(twins: Twins) -> None:
    checkpoint = copy.deepcopy({"model": twins.model.state_dict(), "optimizer": twins.optimizer.state_dict()})
    twins.train(3)
    for model, optimizer in ((twins.model, twins.optimizer), (twins.plain, twins.plain_optimizer)):
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(copy.deepcopy(checkpoint["optimizer"]))
    twins.train(2)
    twins.check()


@pytest.mark.filterwarnings("error")
def test_a_learning_rate_is_read_at_every_call(twins: Twins) -> None:
    programs = len(twins.compiled.compilations)
    optimizers = (twins.optimizer, twins.plain_optimizer)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in optimizers]
    for _ in range(3):
        twins.train()
        for scheduler in schedulers:
            scheduler.step()  # it would warn if it believed that no optimizer had stepped
    twins.check()
    assert len(twins.compiled.compilations) == programs


def test_optimizer_state_lies_on_the_workers_too(twins: Twins) -> None:
    state = twins.optimizer.state[twins.weight]["momentum_buffer"]
    assert isinstance(state, samite.Tensor)
    expected = twins.plain_optimizer.state[twins.plain[0].weight]["momentum_buffer"]
    torch.testing.assert_close(state.clone(), expected)


def test_a_loss_prints_and_formats_as_a_number(twins: Twins) -> None:
    loss = twins.train()
    assert f"{loss:.4f}" == f"{loss.item():.4f}"
    assert repr(loss).startswith("samite.Tensor(")
    assert float(loss) == loss.item()


def test_gradients_stay_when_parameters_become_handles(twins: Twins) -> None:
    """A call that only computes gradients makes handles of the parameters, which must not take their gradients away."""

    def gradients(model: nn.Module, x: torch.Tensor) -> None:
        model(x).square().mean().backward()

    mesh = samite.mesh("cpu", engine="lockstep", dp=2)
    compiled = samite.compile(gradients, mesh=mesh, placements={"x": {"dp": Shard(0)}})
    for _ in range(3):  # the first makes them, the others accumulate
        compiled(twins.model, twins.x)
        gradients(twins.plain, twins.x)
        for mine, plain in zip(twins.model.parameters(), twins.plain.parameters(), strict=True):
            assert mine.grad is not None
            torch.testing.assert_close(mine.grad.clone(), plain.grad)
    twins.optimizer.step()
    twins.plain_optimizer.step()
    torch.testing.assert_close(twins.weight.detach().clone(), twins.expected)
