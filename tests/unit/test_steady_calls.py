"""What a user does to the state between two calls is seen, though calls look for no more than they must."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import samite
from samite import Shard

MESH = samite.mesh("cpu", tp=2, engine="lockstep")
Between = Callable[[nn.Linear, torch.optim.SGD], object]


def step(model: nn.Linear, optimizer: torch.optim.SGD, x: Tensor) -> Tensor:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _double(model: nn.Linear, optimizer: torch.optim.SGD) -> None:
    with torch.no_grad():
        model.weight.mul_(2)


def _exchange(model: nn.Linear, optimizer: torch.optim.SGD) -> None:
    """Another parameter of the same shape in its place, of the module and of the optimizer."""
    model.bias = nn.Parameter(torch.ones(4))
    optimizer.param_groups[0]["params"][1] = model.bias


def _swap(model: nn.Linear, optimizer: torch.optim.SGD) -> None:
    torch.utils.swap_tensors(model.bias, nn.Parameter(torch.full((4,), 0.5)))


def _transpose(model: nn.Linear, optimizer: torch.optim.SGD) -> None:
    with torch.no_grad():
        model.weight.copy_(model.weight.t().clone())


BETWEEN: dict[str, Between] = {
    "nothing": lambda model, optimizer: None,
    "an op in place": _double,
    "data is written": lambda model, optimizer: model.weight.data.zero_(),
    "data is set": lambda model, optimizer: setattr(model.bias, "data", model.bias.data * 3),
    "a checkpoint is loaded": lambda model, optimizer: model.load_state_dict(
        {"weight": torch.eye(4), "bias": torch.zeros(4)}
    ),
    "another parameter": _exchange,
    "another tensor in the parameter": _swap,
    "transposed": _transpose,
    "momentum is written": lambda model, optimizer: optimizer.state[model.weight]["momentum_buffer"].zero_(),
    "momentum is replaced": lambda model, optimizer: optimizer.state[model.weight].update(
        momentum_buffer=torch.ones(4, 4)
    ),
    "a gradient is there": lambda model, optimizer: setattr(model.weight, "grad", torch.ones(4, 4)),
    "the rate is changed": lambda model, optimizer: optimizer.param_groups[0].update(lr=0.5),
    "it is laid out in another way": lambda model, optimizer: samite.compile(
        lambda w: w.sum(), mesh=MESH, placements={"w": {"tp": Shard(1)}}
    )(model.weight),
}


@pytest.mark.parametrize("between", list(BETWEEN))
def test_what_happens_between_calls_counts(between: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    plain = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, plain)]
    compiled = samite.compile(step, mesh=MESH, placements={"model.weight": {"tp": Shard(0)}})
    x = torch.randn(3, 4)
    for turn in range(6):
        if turn == 4:
            BETWEEN[between](model, optimizers[0])
            if "laid out" not in between:
                BETWEEN[between](plain, optimizers[1])
        torch.testing.assert_close(compiled(model, optimizers[0], x).clone(), step(plain, optimizers[1], x).detach())
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().clone(), theirs.detach())


def test_a_program_keeps_no_state_alive() -> None:
    """Another model of the same structure, and the first one's buffers are given back."""
    from samite.runtime.session import session_of

    session = session_of(MESH)
    compiled = samite.compile(step, mesh=MESH, placements={"model.weight": {"tp": Shard(0)}})
    x = torch.randn(3, 4)
    for _ in range(2):
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            compiled(model, optimizer, x)
    held = len(session.start()._buffers)  # type: ignore[attr-defined]
    for _ in range(3):
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            compiled(model, optimizer, x)
    assert len(session.start()._buffers) <= held + 2  # type: ignore[attr-defined]
