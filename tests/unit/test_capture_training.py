"""Whole training steps: captured programs do what plain PyTorch does, step after step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from captures import Replay, assert_close, assert_same_state, check_steps, train_step
from models import CNN, GPT, MLP, Llama, batch, images
from samite.errors import CaptureError
from samite.frontend import capture

TOKENS = batch(32, 4, 16)
IMAGES = images(4, 3, 8, 8)


def rows(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 16, generator=generator), torch.randint(0, 8, (6,), generator=generator)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """With an eps that keeps it from blowing up gradients that are zero but for rounding."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"momentum": 0.9, "dampening": 0.1, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {}),
    ("AdamW", {"betas": (0.8, 0.95), "fused": True}),
    ("AdamW", {"foreach": True}),
    ("AdamW", {"lr": torch.tensor(1e-3)}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("RMSprop", {"momentum": 0.5, "centered": True, "eps": 1e-3}),
    ("ASGD", {"t0": 1.0}),
    ("Rprop", {}),
]


@pytest.mark.parametrize("name, options", OPTIMIZERS, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_optimizers(name: str, options: dict[str, Any]) -> None:
    model = MLP()
    optimizer = getattr(torch.optim, name)(model.parameters(), **{"lr": 1e-2, **options})
    check_steps(train_step, (model, optimizer, *rows()), steps=4)


def _every_optimizer() -> set[str]:
    classes = vars(torch.optim).items()
    return {n for n, c in classes if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)} - {"Optimizer"}


def test_every_optimizer_of_torch_works_or_is_refused() -> None:
    refused = {"Adafactor", "LBFGS", "SparseAdam"}
    assert _every_optimizer() - {name for name, _ in OPTIMIZERS} == refused | ({"Muon"} & _every_optimizer())
    for name in sorted(refused):
        model = MLP()
        with pytest.raises(CaptureError, match=f"{name} cannot be captured") as error:
            capture(train_step, (model, getattr(torch.optim, name)(model.parameters()), *rows()))
        assert "captures.py" in error.value.where


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="since torch 2.9")
def test_muon() -> None:
    model = nn.Linear(16, 8, bias=False)
    optimizer = torch.optim.Muon(model.parameters(), lr=1e-2)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    check_steps(step, (model, optimizer, *rows()), tolerance=1e-3)  # it iterates in bfloat16


@pytest.mark.parametrize("model", [
    GPT(fused_qkv=False), GPT(layers=1), GPT(layers=1, tie=True), GPT(layers=1, dropout=0.2),
    GPT(layers=1, dropout=0.2, fused_qkv=False, tie=True), Llama(layers=1),
], ids=["separate", "fused", "tied", "dropout", "dropout-tied", "llama"])  # fmt: skip
def test_language_models(model: nn.Module) -> None:
    optimizer = adamw(model)
    check_steps(train_step, (model, optimizer, *TOKENS), programs=2)


def test_convolutions_and_batch_statistics() -> None:
    model = CNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    check_steps(train_step, (model, optimizer, *IMAGES), programs=2, tolerance=2e-5)
    model.eval()
    check_steps(train_step, (model, optimizer, *IMAGES), programs=2, tolerance=2e-5)


def test_learning_rate_is_read_at_every_call() -> None:
    def setting() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        torch.manual_seed(0)
        model = MLP()
        groups = [{"params": model.layers.parameters(), "lr": 1e-2}, {"params": model.head.parameters()}]
        optimizer = torch.optim.AdamW(groups, eps=1e-4)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    eager, mine, replay = setting(), setting(), Replay(train_step)
    for _ in range(5):
        assert_close(replay(*mine[:2], *rows()), train_step(*eager[:2], *rows()), 1e-5)
        assert_same_state(mine[:2], eager[:2], 1e-5)
        eager[2].step()
        mine[2].step()
    assert len(replay.captures) == 2


@pytest.mark.parametrize("clip", [
    lambda p: nn.utils.clip_grad_norm_(p, 0.1),
    lambda p: nn.utils.clip_grad_norm_(p, 0.1, norm_type=1.0),
    lambda p: nn.utils.clip_grad_norm_(p, 0.1, norm_type=float("inf")),
    lambda p: nn.utils.clip_grad_norm_(p, 0.1, foreach=True),
    lambda p: nn.utils.clip_grad_value_(p, 0.01),
], ids=["2", "1", "inf", "foreach", "value"])  # fmt: skip
def test_gradient_clipping(clip: Any) -> None:
    model = MLP()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = model(x, y)
        loss.backward()
        norm = clip(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        return loss, norm

    check_steps(step, (model, torch.optim.SGD(model.parameters(), lr=0.1), *rows()), programs=1)


def test_accumulation_within_a_step() -> None:
    model = GPT(layers=1)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        optimizer.zero_grad()
        losses = []
        for t, y in zip(tokens.chunk(2), targets.chunk(2), strict=True):
            loss = model(t, y) / 2
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return losses

    check_steps(step, (model, adamw(model), *TOKENS), programs=2)


def test_accumulation_over_steps() -> None:
    """Gradients are state: a call that leaves them behind, and one that finds them, are programs of their own."""
    model = MLP()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, update: bool) -> Tensor:
        loss = model(x, y)
        loss.backward()
        if update:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    eager, mine = [(m, torch.optim.AdamW(m.parameters())) for m in (copy.deepcopy(model), model)]
    replay = Replay(step)
    for i in range(6):
        update = i % 3 == 2
        assert_close(replay(*mine, *rows(i), update), step(*eager, *rows(i), update), 1e-6)
        assert_same_state(mine, eager, 1e-6)
        assert (next(mine[0].parameters()).grad is None) == update
    assert len(replay.captures) == 6


@pytest.mark.parametrize("to_none", [False, True])
def test_zero_grad(to_none: bool) -> None:
    model = MLP()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        return loss

    replay = check_steps(step, (model, torch.optim.SGD(model.parameters(), lr=0.1), *rows()), steps=3)
    assert len(replay.captures) == (1 if to_none else 2)


@pytest.mark.parametrize("model", [GPT(layers=1), Llama(layers=1), CNN()], ids=["gpt", "llama", "cnn"])
def test_autocast(model: nn.Module) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, *batch: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    data = IMAGES if isinstance(model, CNN) else TOKENS
    # The decomposed loss and statistics round at other places than the fused kernels do.
    check_steps(step, (model, torch.optim.SGD(model.parameters(), lr=0.01), *data), programs=1, tolerance=2e-2)


class Checkpointed(nn.Module):
    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.gpt.tokens(tokens) + self.gpt.positions(torch.arange(tokens.size(1)))
        for block in self.gpt.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits = self.gpt.head(self.gpt.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_activation_checkpointing(dropout: float) -> None:
    """With dropout: the recomputed forward must draw the numbers of the first one."""
    model = Checkpointed(GPT(dropout=dropout))
    check_steps(train_step, (model, torch.optim.SGD(model.parameters(), lr=0.1), *TOKENS), programs=1)


def test_two_optimizers() -> None:
    model = MLP()
    optimizers = (torch.optim.SGD(model.layers.parameters(), lr=0.1), torch.optim.AdamW(model.head.parameters()))

    def step(model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...], x: Tensor, y: Tensor) -> Tensor:
        loss = model(x, y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    check_steps(step, (model, optimizers, *rows()), programs=2)


def test_frozen_parameters_and_hooks() -> None:
    model = MLP()
    model.layers[0].requires_grad_(False)
    model.head.weight.register_hook(lambda g: g * 2)
    model.head.bias.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5))
    replay = check_steps(train_step, (model, torch.optim.SGD(model.parameters(), lr=0.1), *rows()), programs=1)
    [captured] = replay.captures.values()
    assert not [r for r in captured.results if r.name.startswith("model.layers.0")]


def test_moving_average_of_a_second_model() -> None:
    model = MLP()
    average = copy.deepcopy(model).requires_grad_(False)

    def step(model: nn.Module, average: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        loss = train_step(model, optimizer, x, y)
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 0.1)
        return loss

    check_steps(step, (model, average, torch.optim.SGD(model.parameters(), lr=0.1), *rows()), programs=1)


def test_recurrent_layers() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(16, 8, batch_first=True), nn.Linear(8, 8)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.head(self.rnn(x.view(2, 3, 16))[0]).flatten(0, 1), y)

    model = Tagger()
    check_steps(train_step, (model, torch.optim.SGD(model.parameters(), lr=0.1), *rows()), programs=1)
