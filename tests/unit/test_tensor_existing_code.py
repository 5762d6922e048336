"""What existing code does with tensors, done with distributed ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import samite
from rank_threads import mesh_of, on_ranks, whole
from samite import Shard
from samite.tensor import Tensor

X = torch.randn(6, 8)
LINEAR = nn.Linear(8, 4)


def converted(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model.double()(x.double())


def autocast(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    assert y.dtype == torch.bfloat16
    return y.float()


def twice_differentiated(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).tanh().sum(), x, create_graph=True)
    return gradient.square().sum()


def recomputed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: model(x).relu(), x, use_reentrant=False)


def averaged(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    mean = AveragedModel(model)
    mean.update_parameters(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    mean.update_parameters(model)
    return mean(x)


def hooked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    y.register_hook(lambda gradient: gradient * 3)
    return y


def iterated(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    rows = [row * i for i, row in enumerate(model(x))]
    assert len(rows) == len(x)
    return torch.stack(rows) + sum(rows)


def initialised(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    nn.init.constant_(model.weight, 0.5)
    nn.init.eye_(model.weight)
    nn.init.zeros_(model.bias)
    return model(x)


def written_out(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out = torch.empty_like(model(x))
        torch.mul(model(x), 2.0, out=out)
    return out + model(x)


def complex_numbers(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    z = torch.complex(model(x), model(x) * 2)
    return (z * z.conj()).real + z.abs()


CODE: dict[str, Callable[..., torch.Tensor]] = {
    "converted to float64": converted,
    "autocast": autocast,
    "differentiated twice": twice_differentiated,
    "checkpointed": recomputed,
    "averaged": averaged,
    "hooked": hooked,
    "iterated": iterated,
    "initialised": initialised,
    "out": written_out,
    "complex numbers": complex_numbers,
    "functional": lambda model, x: (
        F.normalize(model(x), dim=-1) + F.softplus(model(x)) + F.one_hot(x.argmax(1), 8)[:, :4]
    ),
    "comparison": lambda model, x: (model(x) > 0).float() * model(x) + (x.sum() if (x.sum() > 1e9) else 0),
    "deep copy": lambda model, x: copy.deepcopy(model)(x) + model(x),
}


def tolerances(code: str) -> dict[str, float]:
    """Sums of bfloat16 terms round by where they are cut."""
    return {"rtol": 2e-2, "atol": 2e-2} if code == "autocast" else {"rtol": 1e-3, "atol": 1e-5}


@pytest.mark.parametrize("driven", [False, True])
@pytest.mark.parametrize("code", CODE)
def test_existing_code(code: str, driven: bool) -> None:
    def run(model: nn.Module, x: torch.Tensor) -> list[Any]:
        y = CODE[code](model, x)
        gradients = []
        if y.requires_grad:
            y.sum().backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return whole([y.detach(), *gradients])

    expected = run(copy.deepcopy(LINEAR), X)

    def act() -> None:
        model = samite.distribute_module(copy.deepcopy(LINEAR), mesh, {"weight": {"tp": Shard(0)}})
        x = samite.tensor(X, mesh, {"dp": Shard(0)})
        assert isinstance(model.weight, Tensor)
        torch.testing.assert_close(run(model, x), expected, **tolerances(code))

    if driven:
        mesh = samite.mesh("cpu", engine="lockstep", dp=2, tp=2)
        act()
    else:
        mesh = mesh_of(dp=2, tp=2)
        on_ranks(mesh, act)


def test_dropout_under_a_checkpoint_drops_the_same() -> None:
    mesh = mesh_of(d=1)

    def act() -> None:
        x = samite.ones((6, 10), mesh, requires_grad=True)
        y = checkpoint(lambda x: F.dropout(x, 0.5), x, use_reentrant=False)
        y.sum().backward()
        torch.testing.assert_close(whole(x.grad), whole(y))

    on_ranks(mesh, act)
