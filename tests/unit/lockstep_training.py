"""Training on a simulated mesh beside plain PyTorch on one device: what the tests of whole models share."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import samite
from samite import Shard
from samite.ir.module import Module
from samite.passes.traffic import collectives

__all__ = ["DATA_PARALLEL", "count_collectives", "momentum", "train_both", "train_step"]

Placements = Mapping[str, Mapping[str, Any]]
Batches = Callable[[int], tuple[Tensor, Tensor]]
"""Step number -> inputs and targets."""

DATA_PARALLEL: Placements = {"inputs": {"dp": Shard(0)}, "targets": {"dp": Shard(0)}}


def momentum(parameters: Iterator[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train_step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = model(inputs, targets)
    loss.backward()
    optimizer.step()
    return loss


def train_both(
    model: nn.Module,
    batches: Batches,
    axes: Mapping[str, int],
    placements: Placements,
    *,
    optimizer: Callable[[Iterator[nn.Parameter]], Optimizer] = momentum,
    steps: int = 3,
    warm: bool = True,
    tolerance: float = 1e-5,
    step_function: Callable[..., Tensor] = train_step,
    **options: Any,
) -> Any:
    """Train `model` on one device and a copy of it on the mesh; after every step all that a user can see is the same:
    the loss, parameters, gradients, buffers and the optimizer's state.

    The lockstep engine poisons padding and compares replicas at every read, so those are checked too. `warm` takes a
    step before the two part, so that all state is there and one program serves all steps. Two float32 tensors are the
    same if they differ by `tolerance` of the largest element. `options` are those of `samite.compile`.
    """
    reference = model, optimizer(model.parameters())
    if warm:
        step_function(*reference, *batches(steps))
    here = copy.deepcopy(reference)
    compiled = samite.compile(step_function, mesh=_lockstep(axes), placements=placements, **options)
    for step in range(steps):
        want = step_function(*reference, *batches(step))
        loss = compiled(*here, *batches(step))
        torch.testing.assert_close(loss.read(), want.detach(), rtol=tolerance, atol=0, msg=lambda m: f"loss: {m}")
        _compare(_visible(*here), _visible(*reference), step, tolerance)
    return compiled


def count_collectives(
    model: nn.Module, batches: Batches, axes: Mapping[str, int], placements: Placements, after: str = "verify"
) -> Counter[tuple[str, str]]:
    """How often a steady-state step asks for each (verb, axes), after a pass."""
    optimizer = momentum(model.parameters())
    train_step(model, optimizer, *batches(0))
    compiled = samite.compile(train_step, mesh=_lockstep(axes), placements=placements)
    _, built = compiled.lower(model, optimizer, *batches(0), keep_text=(after,))
    [text] = [record.text for record in built.records if record.name == after]
    module = Module.parse(text)
    return Counter((c.verb, ".".join(c.axes)) for c in collectives(module.graph, module.mesh))


def _lockstep(axes: Mapping[str, int]) -> Any:
    return samite.mesh("cpu", engine="lockstep", **axes)


def _visible(model: nn.Module, optimizer: Optimizer) -> dict[tuple[str, str], Tensor]:
    """(kind, name) -> value."""
    found: dict[tuple[str, str], Tensor] = {("buffer", name): buffer for name, buffer in model.named_buffers()}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        found["parameter", name], found["gradient", name] = parameter, parameter.grad
        found |= {(key, name): value for key, value in optimizer.state[parameter].items() if isinstance(value, Tensor)}
    return {key: value.detach() for key, value in found.items()}


def _compare(got: Mapping[Any, Tensor], want: Mapping[Any, Tensor], step: int, tolerance: float) -> None:
    assert got.keys() == want.keys()
    largest: dict[str, float] = {}
    for (kind, _), value in want.items():
        largest[kind] = max(largest.get(kind, 0.0), value.abs().max().item())
    for (kind, name), value in want.items():
        # What is zero in exact arithmetic is rounding noise (the gradient of a bias of keys, or of one before a batch
        # norm): it is compared on the scale of its kind.
        scale = max(value.abs().max().item(), largest[kind] / 100)
        error = (torch.as_tensor(got[kind, name].numpy()) - value).abs().max().item()
        assert error <= tolerance * scale, f"step {step}: {kind} of {name} is off by {error / scale:.1e} of {scale:.1e}"
