"""Compiled functions where they meet: in one another, under torch.compile, in front of a backward pass."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samite
from samite import Shard
from samite.errors import CaptureError, InputError

MESH = samite.mesh("cpu", dp=2, engine="lockstep")
X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def mean(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).mean()


def test_one_inside_another_is_a_part_of_it(caplog: pytest.LogCaptureFixture) -> None:
    inner = samite.compile(lambda x: x * 2, mesh=MESH, placements={"x": {"dp": Shard(0)}})
    outer = samite.compile(lambda x: inner(x) + 1, mesh=MESH)
    with caplog.at_level(logging.WARNING, "samite"):
        assert torch.equal(outer(X).clone(), X * 2 + 1)
    assert "its placements do not count inside of another compiled function" in caplog.text
    assert not inner.compilations
    assert len(outer.compilations) == 1
    assert torch.equal(inner(X).clone(), X * 2)


def test_a_whole_step_may_call_a_compiled_forward() -> None:
    forward = samite.compile(mean, mesh=MESH)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = forward(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    model = nn.Linear(3, 1)
    compiled = samite.compile(step, mesh=MESH)
    before = model.weight.detach().clone()
    loss = compiled(model, torch.optim.SGD(model.parameters(), lr=1.0), X)
    assert not loss.requires_grad
    torch.testing.assert_close(before - model.weight.detach().clone(), X.mean(0, keepdim=True))


@pytest.mark.parametrize(
    "go_back",
    [
        lambda loss, model: loss.backward(),
        lambda loss, model: (loss * 2 + model.weight.sum()).backward(),
        lambda loss, model: torch.autograd.backward([loss]),
    ],
)
def test_a_backward_pass_that_comes_to_an_output(go_back: Callable[[Tensor, nn.Module], Any]) -> None:
    model = nn.Linear(3, 1)
    loss = samite.compile(mean, mesh=MESH)(model, X)
    assert loss.requires_grad
    with pytest.raises(InputError, match="comes to output of the compiled function mean") as caught:
        go_back(loss, model)
    assert "test_compiled_functions.py" in caught.value.where
    assert "whole step" in caught.value.help


def test_outputs_have_a_graph_where_plain_ones_have() -> None:
    model = nn.Linear(3, 1)
    compiled = samite.compile(mean, mesh=MESH)
    with torch.no_grad():
        assert not compiled(model, X).requires_grad
    with torch.inference_mode():
        assert not compiled(model, X).requires_grad
    assert compiled(model, X).requires_grad
    assert compiled(model, X).item() == pytest.approx(mean(model, X).item())
    model.requires_grad_(False)
    assert not compiled(model, X).requires_grad
    assert not samite.compile(lambda x: x * 2, mesh=MESH)(X).requires_grad


def test_an_output_is_an_input_of_the_next() -> None:
    model, head = nn.Linear(3, 3), nn.Parameter(torch.ones(3))
    features = samite.compile(lambda m, x: m(x), mesh=MESH)(model, X)
    scores = samite.compile(lambda h, f: (h * f).sum(), mesh=MESH)(head, features)
    torch.testing.assert_close(scores.item(), model(X).sum().item())

    def backward(h: Tensor, features: Tensor) -> Tensor:
        loss = (h * features).sum()
        loss.backward()
        return loss

    with pytest.raises(CaptureError, match="the backward pass reaches features, which another compiled function made"):
        samite.compile(backward, mesh=MESH)(head, features)
    samite.compile(backward, mesh=MESH)(head, features.detach())
    assert head.grad is not None
    torch.testing.assert_close(head.grad.detach().clone(), model(X).sum(0).detach())


def test_what_torch_has_compiled_is_traced_through() -> None:
    sine: Any = torch.compile(lambda x: x.sin(), backend="eager")
    layer: Any = torch.compile(nn.Linear(3, 3), backend="eager")
    for _ in range(2):  # before torch has compiled it, and after
        torch.testing.assert_close(samite.compile(lambda x: sine(x) + 1, mesh=MESH)(X).clone(), X.sin() + 1)
        torch.testing.assert_close(samite.compile(sine, mesh=MESH)(X).clone(), X.sin())
        torch.testing.assert_close(samite.compile(layer, mesh=MESH)(X).detach().clone(), layer._orig_mod(X).detach())
        sine(X)


def test_torch_compile_around_one_is_refused() -> None:
    inner = samite.compile(lambda x: x * 2, mesh=MESH)
    around: Any = torch.compile(lambda x: inner(x) + 1, backend="eager")
    with pytest.raises(CaptureError, match=r"is called by one that torch\.compile compiles"):
        around(X)
    assert torch.equal(inner(X).clone(), X * 2)
