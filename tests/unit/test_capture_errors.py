"""What cannot be captured: one error with the user's line and the way out, and everything as it was before."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captures import Replay, train_step
from models import GPT, MLP, batch
from refusals import at, refused
from samite.errors import InputError
from samite.frontend import capture

X = torch.randn(6, 16)
Y = torch.zeros(6, dtype=torch.int64)
HERE = "tests/unit/test_capture_errors.py"


def branch(x: Tensor) -> Tensor:
    if x.sum() > 0:  # here
        return x
    return -x


def item(x: Tensor) -> Tensor:
    return x * x.max().item()  # here


def number(x: Tensor) -> Tensor:
    return x[: int(x.sum())]  # here


def as_float(x: Tensor) -> Tensor:
    return x * float(x.sum())  # here


def to_list(x: Tensor) -> Any:
    return x.tolist()  # here


def to_numpy(x: Tensor) -> Any:
    return x.numpy()  # here


def shown(x: Tensor) -> Tensor:
    print(x)  # here
    return x


def formatted(x: Tensor) -> str:
    return f"{x.sum():.3f}"  # here


def asserted(x: Tensor) -> Tensor:
    assert torch.isfinite(x).all(), "diverged"  # here
    return x


def contained(x: Tensor) -> Any:
    return 1.0 in x  # here


def nonzero(x: Tensor) -> Tensor:
    return x.nonzero()  # here


def where(x: Tensor) -> Any:
    return torch.where(x > 0)  # here


def masked(x: Tensor) -> Tensor:
    return x[x > 0]  # here


def selected(x: Tensor) -> Tensor:
    return torch.masked_select(x, x > 0)  # here


def unique(x: Tensor) -> Tensor:
    return x.unique()  # here


def repeated(x: Tensor) -> Tensor:
    return x.flatten().repeat_interleave(x.flatten().long().abs())  # here


def cut(x: Tensor) -> tuple[Tensor, ...]:
    return torch.tensor_split(x, x[0].long())  # here


def sparse(x: Tensor) -> Tensor:
    return x.to_sparse()  # here


@pytest.mark.parametrize("fn, text, way_out", [
    (branch, "Python branch on a tensor's data", "torch.where"),
    (item, "item() reads a tensor's data", "return the tensor"),
    (number, "int() reads", "return the tensor"),
    (as_float, "float() reads", "return the tensor"),
    (to_list, "reads a tensor's data", "return the tensor"),
    (to_numpy, "numpy() reads", "return the tensor"),
    (shown, "repr() reads", "return the tensor"),
    (formatted, "format() reads", "return the tensor"),
    (asserted, "Python branch", "torch.where"),
    (contained, "Python", "torch.where"),
    (nonzero, "shape depends on data", "torch.where"),
    (where, "shape depends on data", "torch.where"),
    (masked, "depends on data", "mask"),
    (selected, "shape depends on data", "mask"),
    (unique, "depends on data", "mask"),
    (repeated, "depends on data", "mask"),
    (cut, "reads a tensor's data on the host", "Python numbers"),
    (sparse, "makes a sparse tensor", "dense"),
], ids=lambda x: x.__name__ if callable(x) else "")  # fmt: skip
def test_reading_data(fn: Callable[..., Any], text: str, way_out: str) -> None:
    error = refused(fn, X)
    assert text in error.what
    assert error.where == at(fn, "# here")
    assert way_out in error.help


def test_line_within_a_module() -> None:
    class Router(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.mean() > 0 else -x  # here

    assert refused(Router(), X).where == at(Router.forward, "# here")


@pytest.mark.parametrize("draw", [
    lambda x: torch.poisson(x.abs()),
    lambda x: torch.empty_like(x).random_(),
    lambda x: torch.normal(x, 1.0, out=torch.empty_like(x)),
    lambda x: torch.randint_like(x, 1 << 25),
    lambda x: torch.distributions.Gamma(x.exp(), 1.0).sample(),
    lambda x: nn.LSTM(16, 4, 2, dropout=0.5)(x),
], ids=["poisson", "random_", "out", "randint_like", "gamma", "lstm"])  # fmt: skip
def test_random_ops_without_a_counter(draw: Callable[[Tensor], Any]) -> None:
    error = refused(draw, X)
    if "not among its arguments" in error.what:
        return  # the LSTM is made inside: its weights are drawn first
    assert "has no counter-based form" in error.what
    assert error.where.startswith(HERE)


def test_own_generators_and_seeding() -> None:
    generator = torch.Generator()
    assert "own generator" in refused(lambda x: x + torch.rand(6, 16, generator=generator), X).what
    assert "seeded inside" in refused(lambda x: torch.manual_seed(3), X).what
    state = torch.get_rng_state()
    assert "seeded inside" in refused(lambda x: torch.set_rng_state(state), X).what


SCALE = torch.ones(16)
WEIGHTS = [torch.ones(16), torch.ones(16)]
TABLE = {"scale": torch.ones(16)}
MODEL = MLP()
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)


def test_tensors_that_are_not_arguments() -> None:
    local, inner = torch.ones(16), MLP()

    class Holder:
        scale = torch.ones(16)

        def __init__(self) -> None:
            self.shift = torch.ones(16)

    holder = Holder()
    cases: list[tuple[Callable[[Tensor], Any], str]] = [
        (lambda x: x * SCALE, '"SCALE"'),
        (lambda x: x * WEIGHTS[1], '"WEIGHTS[1]"'),
        (lambda x: x * TABLE["scale"], "\"TABLE['scale']\""),
        (lambda x: x * local, '"local"'),
        (lambda x: x + holder.shift, '"holder.shift"'),
        (lambda x: inner(x), '"inner.layers.0.weight"'),
        (lambda x: MODEL(x), '"MODEL.layers.0.weight"'),
        (lambda x: torch.stack([x[0], SCALE]), '"SCALE"'),
        (lambda x: SCALE, '"SCALE"'),
        (lambda x: SCALE.add_(1), '"SCALE"'),
    ]
    for fn, name in cases:
        error = refused(fn, X)
        assert f"tensor {name}, which is not among its arguments" in error.what
        assert "pass it as an argument" in error.help
    assert torch.equal(SCALE, torch.ones(16))
    assert refused(lambda x: x * torch.from_numpy(torch.ones(16).numpy()), X).where.startswith(HERE)


def test_optimizers_that_are_not_arguments() -> None:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return train_step(model, OPTIMIZER, x, y)

    assert 'optimizer "OPTIMIZER", which is not among' in refused(step, MODEL, X, Y).what
    hidden = [torch.optim.SGD(MODEL.parameters(), lr=0.1)]

    def sneaky(model: nn.Module, x: Tensor, y: Tensor) -> None:
        model(x, y).backward()
        hidden[0].step()  # here

    error = refused(sneaky, MODEL, X, Y)
    assert 'optimizer "hidden[0]"' in error.what
    assert error.where == at(sneaky, "# here")


def test_schedulers_and_learning_rates() -> None:
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    before = copy.deepcopy(scheduler.state_dict())

    def scheduled(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        scheduler.step()  # here

    def by_loss(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        plateau.step(torch.ones(()))  # here

    def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5  # here

    def by_fill(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"].fill_(0.5)  # here

    def momentum(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["momentum"] = 0.5  # here

    for fn in (scheduled, by_loss, by_hand, by_fill, momentum):
        error = refused(fn, model, optimizer)
        assert error.where == at(fn, "# here")
        assert "outside of the captured function" in error.help
    assert scheduler.state_dict() == before
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.param_groups[0]["momentum"] == 0


def test_gradient_scalers() -> None:
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model: nn.Module, optimizer: Any, scaler: torch.amp.GradScaler, x: Tensor, y: Tensor) -> None:
        scaler.scale(model(x, y)).backward()  # here
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    error = refused(step, model, optimizer, torch.amp.GradScaler("cpu"), X, Y)
    assert "GradScaler" in error.what
    assert error.where == at(step, "# here")
    assert "bfloat16" in error.help
    before = model.head.weight.detach().clone()
    Replay(step)(model, optimizer, torch.amp.GradScaler("cpu", enabled=False), X, Y)
    assert not torch.equal(before, model.head.weight)


def test_errors_of_the_users_own_code_pass() -> None:
    def raises(x: Tensor) -> None:
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing"):
        capture(raises, (X,))
    with pytest.raises(InputError, match=r"^matmul: .*reduction dim"):
        capture(lambda x: x @ x, (X,))


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[Any, ...]]:
    for p in [*model.parameters(), *model.buffers()]:
        yield id(p), p.detach().clone(), p.grad, dict(optimizer.state.get(p, {}))


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_the_users_is_touched(fails: bool) -> None:
    model = GPT(layers=1, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, targets = batch(32, 2, 16)
    model(tokens, targets).backward()
    optimizer.step()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = train_step(model, optimizer, tokens, targets)
        if fails:
            raise ValueError("at the very end")
        return loss

    rng = torch.get_rng_state()
    before = list(_tensors(model, optimizer))
    groups, defaults, attributes = optimizer.param_groups, optimizer.defaults, [dict(vars(m)) for m in model.modules()]
    if fails:
        with pytest.raises(ValueError, match="at the very end"):
            capture(step, (model, optimizer, tokens, targets))
    else:
        capture(step, (model, optimizer, tokens, targets))
    for (i, p, g, s), (j, q, h, t) in zip(before, _tensors(model, optimizer), strict=True):
        assert i == j
        assert torch.equal(p, q)
        assert g is h
        assert s.keys() == t.keys()
        assert all(s[k] is t[k] for k in s)
    assert optimizer.param_groups is groups
    assert optimizer.param_groups[0]["lr"] == 1e-3
    assert optimizer.param_groups[0]["capturable"] is False
    assert optimizer.defaults is defaults
    assert [vars(m) for m in model.modules()] == attributes
    assert torch.equal(torch.get_rng_state(), rng)
    assert not torch.compiler.is_compiling()
    assert torch.nn.functional.has_torch_function is torch.overrides.has_torch_function
