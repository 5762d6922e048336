"""Functions, modules and graphs; all that goes in and comes out of them."""

from __future__ import annotations

import functools
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captures import Replay, check_steps
from models import CNN, GPT, MLP, batch, images
from samite.errors import CaptureError, InputError
from samite.frontend import StateTree, capture

X = torch.arange(12.0).view(3, 4)


def names(fn: Any, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
    captured = capture(fn, args, kwargs)
    placeholders = captured.graph.graph.find_nodes(op="placeholder")
    assert len(placeholders) == len(captured.arguments)
    return [(a.name, a.kind) for a in captured.arguments]


@pytest.mark.parametrize("model", [GPT(layers=1), MLP(), CNN()], ids=["gpt", "mlp", "cnn"])
@pytest.mark.parametrize("train", [True, False])
def test_modules(model: nn.Module, train: bool) -> None:
    model.train(train)
    data = {"GPT": batch(32, 2, 16), "MLP": (torch.randn(5, 16),), "CNN": images(2, 3, 8, 8)}[type(model).__name__]
    replay = Replay(model)
    torch.testing.assert_close(replay(*data), model(*data).detach())
    torch.testing.assert_close(replay(data[0]), model(data[0]).detach())
    assert len(replay.captures) == len(data)


def test_names_of_a_module() -> None:
    assert names(nn.BatchNorm1d(4), X) == [
        ("weight", "state"),
        ("bias", "state"),
        ("running_mean", "state"),
        ("running_var", "state"),
        ("num_batches_tracked", "state"),
        ("input", "input"),
    ]


def test_a_graph_module_is_a_module() -> None:
    model = MLP()
    graph = torch.fx.symbolic_trace(model, concrete_args={"labels": None})
    x = torch.randn(5, 16)
    torch.testing.assert_close(Replay(graph)(x), model(x).detach())


def test_a_captured_graph_is_a_module() -> None:
    graph = capture(lambda x, y: (x @ y, x.sum()), (X, X.T)).graph
    product, total = Replay(graph)(X, X.T)
    torch.testing.assert_close(product, X @ X.T)
    torch.testing.assert_close(total, X.sum())


Point = namedtuple("Point", "x y")


def test_pytrees_in_and_out() -> None:
    def f(batch: dict[str, Any], point: Point, *rest: Tensor, **named: Tensor) -> dict[str, Any]:
        return {"sum": batch["x"] + batch["y"][0], "point": Point(point.y, "text"), "all": (sum(rest), [named["z"], 3])}

    args = ({"x": X, "y": [X + 1, None]}, Point(X * 2, X * 3), X, X)
    check_steps(functools.partial(f, z=X), args, steps=1)
    assert names(f, *args, z=X + 5) == [
        ("batch.x", "input"),
        ("batch.y.0", "input"),
        ("point.x", "input"),
        ("point.y", "input"),
        ("z", "input"),
    ]


def test_result_names() -> None:
    def f(x: Tensor) -> dict[str, Any]:
        return {"loss": x.sum(), "parts": (x, 1)}

    assert [(r.name, r.kind) for r in capture(f, (X,)).results] == [
        ("output.loss", "output"),
        ("output.parts.0", "output"),
    ]
    assert [r.name for r in capture(lambda x: x + 1, (X,)).results] == ["output"]
    assert capture(lambda x: None, (X,)).rebuild([]) is None


def test_keyword_default_and_non_tensor_arguments() -> None:
    def f(x: Tensor, scale: float = 2.0, *, shift: int = 0, mode: str = "add") -> Tensor:
        return x * scale + shift if mode == "add" else x * scale - shift

    replay = Replay(f)
    for args, kwargs in [((X,), {}), ((X, 3.0), {}), ((X,), {"shift": 4}), ((), {"x": X, "mode": "sub", "shift": 1})]:
        torch.testing.assert_close(replay(*args, **kwargs), f(*args, **kwargs))
    assert len(replay.captures) == 4
    replay(X, 2.0, shift=0)
    replay(X, 2.0, shift=False)  # equal, but of another type
    assert len(replay.captures) == 5


def test_wrong_arguments() -> None:
    with pytest.raises(InputError, match="missing a required argument: 'y'") as error:
        capture(lambda x, y: x, (X,))
    assert "(x, y)" in error.value.help


def test_batch_statistics_are_results() -> None:
    model = nn.BatchNorm1d(4)
    captured = capture(model, (X,))
    changed = {r.name: captured.arguments[r.argument].name for r in captured.results if r.kind == "state"}
    assert changed == {n: n for n in ("running_mean", "running_var", "num_batches_tracked")}
    check_steps(lambda m, x: m(x), (model, X), programs=1)


def test_arguments_that_change_in_place() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        y[0].zero_()
        return x.sum() + y.sum()

    captured = capture(f, (X, X + 1))
    assert [(a.name, a.kind) for a in captured.arguments] == [("x", "state"), ("y", "state")]
    assert [(r.name, r.argument) for r in captured.results] == [("output", -1), ("x", 0), ("y", 1)]
    check_steps(f, (X, X + 1))


def test_one_tensor_passed_twice() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2

    x = torch.ones(3)
    torch.testing.assert_close(Replay(f)(x, x), torch.full((3,), 4.0))
    assert names(f, x, x) == [("x", "state")]
    assert StateTree.from_call(f, (x, x)).key() != StateTree.from_call(f, (x, x.clone())).key()


def test_parameters_as_arguments() -> None:
    def f(weight: nn.Parameter, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = (x @ weight).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    weight = nn.Parameter(torch.ones(4, 2))
    check_steps(f, (weight, torch.optim.SGD([weight], lr=0.01, momentum=0.9), X))
    tree = StateTree.from_call(f, (weight, torch.optim.SGD([weight], lr=0.01), X))
    assert [leaf.name for leaf in tree.leaves] == [
        "weight", "optimizer.param_groups.0.lr", "optimizer.param_groups.0.numbers", "x",
    ]  # fmt: skip


def test_gradient_of_an_input() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.square().sum()
        y.backward()
        return y

    x = X.clone().requires_grad_()
    Replay(f)(x)
    torch.testing.assert_close(x.grad, 2 * X)
    Replay(f)(x)
    torch.testing.assert_close(x.grad, 4 * X)


def test_methods_and_objects() -> None:
    @dataclass
    class Trainer:
        model: nn.Module
        optimizer: torch.optim.Optimizer
        scale: float = 1.0
        offset: Tensor = field(default_factory=lambda: torch.ones(()))

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = self.model(x, y) * self.scale + self.offset
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss

    model = MLP()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = torch.randn(4, 16), torch.zeros(4, dtype=torch.int64)
    tree = StateTree.from_call(trainer.step, (x, y))
    assert tree.leaves[0].name == "model.layers.0.weight"
    assert {"optimizer.param_groups.0.lr", "offset", "x", "y"} <= set(tree.by_name)
    before = model.head.weight.detach().clone()
    replay = Replay(trainer.step)
    replay(x, y)
    assert not torch.equal(before, model.head.weight)
    key = StateTree.from_call(trainer.step, (x, y)).key((), replay.places)
    trainer.unread = 1  # type: ignore[attr-defined]
    assert StateTree.from_call(trainer.step, (x, y)).key((), replay.places) == key
    trainer.scale = 2.0
    assert StateTree.from_call(trainer.step, (x, y)).key((), replay.places) != key
    assert StateTree.from_call(Trainer.step, (trainer, x, y)).leaves[0].name == "self.model.layers.0.weight"


def test_a_module_whose_parameter_has_the_name_of_an_argument() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.x

    assert names(Scale(), X) == [("self.x", "state"), ("x", "input")]


def test_tensors_that_are_plain_attributes() -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.arange(4.0)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.table

    assert names(Rotary(), X) == [("table", "state"), ("x", "input")]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_grad_modes(mode: Any) -> None:
    model = MLP()
    with mode():
        replay = Replay(model)
        torch.testing.assert_close(replay(torch.ones(2, 16)), model(torch.ones(2, 16)).detach())
    inner = mode()(lambda m, x: m(x))
    check_steps(inner, (model, torch.ones(2, 16)), steps=1)


def test_functional_transforms() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))(x)

    torch.testing.assert_close(Replay(f)(X), X.cos())


def test_double_backward() -> None:
    def f(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
        return h

    torch.testing.assert_close(Replay(f)(X), 6 * X)


def test_custom_autograd_function() -> None:
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            (x,) = ctx.saved_tensors
            return grad * (x.abs() < 2)

    def f(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        Clip.apply(x).sum().backward()
        assert x.grad is not None
        return x.grad

    torch.testing.assert_close(Replay(f)(X), (X.abs() < 2).float())


@pytest.mark.parametrize("make", [
    lambda x: torch.zeros_like(x) + torch.ones(4) + torch.full((4,), 2.0) + x.new_zeros(4) + torch.empty(4).fill_(3),
    lambda x: x + torch.tensor(0.5) + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    lambda x: x.to(torch.float64).to(x.device).to("cpu", torch.float32),
    lambda x: x + torch.eye(4)[:3] + torch.linspace(0, 1, 4) + torch.arange(4, device=x.device),
    lambda x: torch.einsum("ij,kj->ik", x, x).softmax(-1).std(dim=1, correction=0),
    lambda x: torch.var_mean(x, dim=0),
    lambda x: F.normalize(x, dim=1) + x.norm(p=1) + x.norm(p=3, dim=0) + torch.linalg.vector_norm(x, float("inf")),
    lambda x: F.group_norm(x.view(1, 4, 3), 2),
    lambda x: F.rms_norm(x, (4,)),
    lambda x: F.mse_loss(x, x + 1) + F.l1_loss(x, x + 1) + F.smooth_l1_loss(x, x + 3) + F.huber_loss(x, x - 2),
    lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid()) + F.binary_cross_entropy(x.sigmoid(), x.cos().abs()),
    lambda x: F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
])  # fmt: skip
def test_decomposed_ops(make: Any) -> None:
    check_steps(make, (X,), steps=1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(5, 7), (7,), (2, 7, 3), (2, 7, 3, 2)], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(shape: tuple[int, ...], reduction: str, weighted: bool, smoothing: float) -> None:
    """Forward and gradient, with ignored entries and class weights."""
    target_shape = shape[:-1] if len(shape) == 1 else shape[:1] + shape[2:]
    target = torch.randint(0, 7, target_shape)
    if target.dim():
        target.view(-1)[::2] = 3
    weight = torch.rand(7) if weighted else None

    def f(x: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        x = x.detach().requires_grad_()
        loss = F.cross_entropy(x, target, weight, reduction=reduction, ignore_index=3, label_smoothing=smoothing)
        loss.square().sum().backward()
        return loss, x.grad

    check_steps(f, (torch.randn(shape), target, weight), steps=1)
    captured = capture(f, (torch.randn(shape), target, weight))
    assert not [n for n in captured.graph.graph.nodes if "nll_loss" in str(n.target)]


def test_layers_that_are_lazy_or_sparse_or_in_a_graph() -> None:
    with pytest.raises(CaptureError, match="weight has no shape yet"):
        capture(nn.LazyLinear(3), (X,))
    with pytest.raises(CaptureError, match="x is a sparse tensor"):
        capture(lambda x: x, (X.to_sparse(),))
    with pytest.raises(CaptureError, match="x is part of an autograd graph"):
        capture(lambda x: x, (X.clone().requires_grad_() * 2,))


FOREACH: list[Any] = [
    lambda xs, ys: torch._foreach_add(xs, ys, alpha=2),
    lambda xs, ys: torch._foreach_sub(xs, [1.0, 2.0]),
    lambda xs, ys: torch._foreach_mul(xs, torch.tensor(2.0)),
    lambda xs, ys: torch._foreach_norm(xs) + torch._foreach_norm(ys, 1),
    lambda xs, ys: torch._foreach_addcdiv(xs, ys, ys, 0.5),
    lambda xs, ys: torch._foreach_addcmul(xs, ys, ys, scalars=[0.5, 0.25]),
    lambda xs, ys: torch._foreach_addcdiv(xs, ys, xs, value=0.5),
    lambda xs, ys: torch._foreach_lerp(xs, ys, 0.3),
    lambda xs, ys: torch._foreach_pow(2.0, xs),
    lambda xs, ys: torch._foreach_maximum(xs, ys),
    lambda xs, ys: torch._foreach_add_(xs, ys),
    lambda xs, ys: torch._foreach_zero_(xs),
    lambda xs, ys: torch._foreach_copy_(xs, ys),
    lambda xs, ys: torch._foreach_addcmul_(xs, ys, ys, [1.0, 2.0]),
]


@pytest.mark.parametrize("function", FOREACH)
def test_functions_over_lists_become_one_op_a_tensor(function: Any) -> None:
    def f(xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
        return [*(function(xs, ys) or ()), *xs]

    args = [torch.rand(3), torch.rand(2, 2)], [torch.rand(3) + 1, torch.rand(2, 2) + 1]
    (captured,) = check_steps(f, args, steps=1).captures.values()
    assert "foreach" not in captured.graph.code
