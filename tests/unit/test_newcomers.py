"""What users' scripts did that went wrong once: each stays right, or is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

import samite
from samite import Shard
from samite.errors import CaptureError, InputError

MESH = samite.mesh("cpu", dp=2, engine="lockstep")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def test_a_recurrent_layer_trains() -> None:
    """Its list of weak references to its weights is no one's to keep."""

    def step(model: nn.LSTM, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = model(x)[0].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    torch.manual_seed(0)
    model = nn.LSTM(4, 6)
    plain = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain)]
    compiled = samite.compile(step, mesh=MESH, placements={"x": {"dp": Shard(1)}})
    for seed in range(3):
        x = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(
            compiled(model, optimizers[0], x).clone(), step(plain, optimizers[1], x).detach(), rtol=1e-5, atol=1e-6
        )
    assert len(compiled.compilations) <= 2


def _pruned(layer: nn.Module) -> nn.Module:
    prune.l1_unstructured(layer, "weight", amount=0.5)
    return layer


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(
    "wrapped",
    [
        nn.utils.weight_norm,
        lambda layer: nn.utils.weight_norm(layer, dim=None),
        nn.utils.parametrizations.weight_norm,
        nn.utils.spectral_norm,
        nn.utils.parametrizations.spectral_norm,
        _pruned,
    ],
)
def test_weights_that_are_computed_of_parameters(wrapped: Callable[[nn.Module], nn.Module]) -> None:
    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(wrapped(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 4))

    models = make(), make()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    x, y = torch.randn(6, 6), torch.randint(4, (6,))
    compiled = samite.compile(train, mesh=MESH, placements={"x": {"dp": Shard(0)}})
    for turn in range(4):
        if turn == 2:  # the weight is of a graph again
            torch.testing.assert_close(models[0](x).detach().clone(), models[1](x).detach())
        torch.testing.assert_close(
            compiled(models[0], optimizers[0], x, y).clone(), train(models[1], optimizers[1], x, y).detach()
        )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, 0] * 2,
        lambda x: x[:, -1] * 2,
        lambda x: x[:, :-1] * x[:, 1:],
        lambda x: x * torch.arange(x.shape[0])[:, None],
    ],
)
def test_slices_of_other_dims_leave_the_batch_free(function: Callable[[Tensor], Tensor]) -> None:
    compiled = samite.compile(function, mesh=MESH, placements={"x": {"dp": Shard(0)}})
    for batch in (6, 4, 5, 7):
        x = torch.randn(batch, 12)
        torch.testing.assert_close(compiled(x).clone(), function(x))
    assert [made.origin for made in compiled.compilations] == ["capture", "symbolic capture", "instance", "instance"]


@pytest.mark.parametrize("window", [lambda b: b[2:6], lambda b: b.view(2, 4), lambda b: b.detach()])
def test_what_is_changed_shares_memory_with_nothing_else(window: Callable[[Tensor], Tensor]) -> None:
    def double(buffer: Tensor, other: Tensor) -> Tensor:
        buffer.mul_(2)
        return other.sum()

    buffer = torch.ones(8)
    with pytest.raises(CaptureError, match="buffer, which the step changes, shares memory with other"):
        samite.compile(double, mesh=MESH)(buffer, window(buffer))
    assert torch.equal(buffer, torch.ones(8))
    assert samite.compile(double, mesh=MESH)(buffer[:4], buffer[4:]).item() == 4
    assert torch.equal(buffer, torch.tensor([2.0] * 4 + [1.0] * 4))


def test_weights_tied_by_their_memory_are_refused() -> None:
    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.decode.weight.data = self.encode.weight.data.t()

        def forward(self, x: Tensor) -> Tensor:
            return self.decode(self.encode(x).tanh())

    model = Autoencoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CaptureError, match="shares memory with model"):
        samite.compile(train, mesh=MESH)(model, optimizer, torch.randn(4, 6), torch.randint(6, (4,)))


def test_a_call_that_cannot_take_its_state_over_changes_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 33), nn.ReLU(), nn.Linear(33, 5))
    plain = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1) for m in (model, plain)]
    x, y = torch.randn(4, 10), torch.randint(5, (4,))
    kept = F.cross_entropy(model(x), y)  # whose graph holds the parameters
    compiled = samite.compile(train, mesh=MESH, placements={"x": {"dp": Shard(0)}})
    with pytest.raises(InputError, match="cannot be replaced"):
        compiled(model, optimizers[0], x, y)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.detach().clone(), theirs.detach())
    assert not optimizers[0].state
    del kept
    for _ in range(3):
        loss = compiled(model, optimizers[0], x, y)
        torch.testing.assert_close(loss.detach().clone(), train(plain, optimizers[1], x, y).detach())
