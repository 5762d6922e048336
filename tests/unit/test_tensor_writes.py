"""In-place ops and views of `samite.Tensor`: what is written is seen by all who look at it, as on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import samite
from rank_threads import check, mesh_of, on_ranks, whole
from samite import Partial, Shard
from samite.tensor import Tensor

X, Y = torch.randn(6, 8), torch.randn(6, 8)


def through_view(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x * 1
    flat = x.view(-1)
    flat[5:9].fill_(7.0)
    x.mul_(2)
    return x, flat * 1


def between_views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x * 1
    one, other = x.view(4, 12), x.t()
    other.add_(1)
    one[1].zero_()
    x[0, 0] = 5.0
    return x, one * 1, other * 1


def of_a_view_of_a_view(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x * 1
    view = x.view(48)[8:40].view(4, 8).t()
    view.copy_(y[:4].t())
    return x, view * 1


def parts(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x * 1
    with torch.no_grad():
        for i, part in enumerate(x.split(4, 1)):
            part.add_(i)
        for i, part in enumerate(x.unbind(0)):
            part.mul_(i)
    return x, y


def partial_clamped(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product = x @ y.t()
    product.clamp_(min=-0.5)
    other = x @ y.t()
    other.view(-1).clamp_(max=0.25)
    return product, other


WRITES: dict[str, Callable[..., Any]] = {
    "add_": lambda x, y: (x * 1).add_(y),
    "add_ a number": lambda x, y: (x * 1).add_(1.5),
    "alpha": lambda x, y: (x * 1).add_(y, alpha=0.5),
    "mul_": lambda x, y: (x * 1).mul_(y).mul_(2),
    "chain": lambda x, y: (x * 1).addcmul_(x, y, value=0.5).clamp_(min=0).sqrt_(),
    "fill_": lambda x, y: ((x * 1).fill_(2.0), (y * 1).zero_()),
    "copy_": lambda x, y: ((x * 1).copy_(y), (x * 1).copy_(torch.ones(8)), (y * 1).copy_(y.double())),
    "masked_fill_": lambda x, y: (x * 1).masked_fill_(y.detach() > 0, -1.0),
    "index": lambda x, y: (x * 1).index_put_((torch.tensor([0, 3, 3]),), y[:3], accumulate=True),
    "triu_": lambda x, y: (x * 1).triu_(),
    "shapes": lambda x, y: (
        (x * 1).unsqueeze_(1).add_(y[:, None]),
        (x * 2).t_(),
        (y * 1).transpose_(0, 1).mul_(2),
        (y * 1)[:1].squeeze_(0),
    ),
    "vectors": lambda x, y: (x[0] @ y.t(), x @ y[1], x[1] @ y[2]),
    "through a view": through_view,
    "between views": between_views,
    "of a view of a view": of_a_view_of_a_view,
    "parts": parts,
    "a partial value clamped": partial_clamped,
}
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "both": {"x": {"dp": Shard(0), "tp": Shard(1)}, "y": {"tp": Shard(1)}},
    "crossed": {"x": {"dp": Shard(1)}, "y": {"tp": Shard(0), "dp": Shard(0)}},
    "partial": {"x": {"dp": Partial(), "tp": Shard(1)}, "y": {"tp": Partial()}},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_that_of_one_device(write: str, layout: str) -> None:
    check(WRITES[write], {"x": X, "y": Y}, LAYOUTS[layout], mesh_of(dp=2, tp=2), rtol=1e-4, atol=1e-5)


def test_a_write_keeps_the_layout() -> None:
    mesh = mesh_of(tp=2)

    def act() -> None:
        x, w = samite.tensor(X, mesh, {"tp": Shard(1)}), samite.tensor(Y.t(), mesh, {"tp": Shard(0)})
        product = x @ w
        assert product.placements == {"tp": Partial()}
        product.relu_()
        assert product.placements == {"tp": Partial()}
        torch.testing.assert_close(whole(product), (X @ Y.t()).relu())
        x += torch.ones(8)
        assert x.placements == {"tp": Shard(1)}

    on_ranks(mesh, act)


def test_a_partial_value_is_reduced_once_for_all_who_read_it() -> None:
    from rank_threads import asked_for

    mesh = mesh_of(tp=2)

    def act() -> None:
        product = samite.tensor(X, mesh, {"tp": Shard(1)}) @ samite.tensor(Y.t(), mesh, {"tp": Shard(0)})
        assert asked_for() == []
        results = [product.exp(), product.relu(), product.abs()]
        assert asked_for() == ["all_reduce"]
        for result, op in zip(results, (torch.exp, torch.relu, torch.abs), strict=True):
            torch.testing.assert_close(whole(result), op(X @ Y.t()))

    on_ranks(mesh, act)


def test_a_partial_value_that_others_look_at_keeps_its_terms() -> None:
    mesh = mesh_of(tp=2)

    def act() -> None:
        product = samite.tensor(X, mesh, {"tp": Shard(1)}) @ samite.tensor(Y.t(), mesh, {"tp": Shard(0)})
        view = product.view(-1)
        torch.testing.assert_close(whole(product.exp()), (X @ Y.t()).exp())
        view.fill_(3.0)
        torch.testing.assert_close(whole(product.exp()), torch.full((6, 6), 3.0).exp())

    on_ranks(mesh, act)


def test_a_plain_tensor_can_be_written_from_a_distributed_one() -> None:
    mesh = mesh_of(dp=2)

    def act() -> None:
        plain = torch.zeros(6, 8)
        assert plain.copy_(samite.tensor(X, mesh, {"dp": Shard(0)})) is plain
        torch.testing.assert_close(plain, X)
        plain.lerp_(samite.tensor(Y, mesh, {"dp": Shard(1)}), 0.25)
        torch.testing.assert_close(plain, X.lerp(Y, 0.25))

    on_ranks(mesh, act)


def test_data_can_be_set() -> None:
    mesh = mesh_of(dp=2)

    def act() -> None:
        x = samite.tensor(X, mesh, {"dp": Shard(0)}, requires_grad=True)
        x.data = samite.tensor(Y, mesh, {"dp": Shard(1)})
        assert x.placements == {"dp": Shard(1)}
        torch.testing.assert_close(whole(x * 2), Y * 2)
        x.data.zero_()
        assert whole(x).abs().sum() == 0
        assert isinstance(x.data, Tensor)

    on_ranks(mesh, act)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_views_without_autograd(mode: Callable[[], Any]) -> None:
    mesh = mesh_of(dp=2)

    def act() -> None:
        with mode():
            x = samite.tensor(X, mesh, {"dp": Shard(1)})
            flat = x.view(-1)  # which has to gather
            flat[3] = 9.0
            x.add_(1)
            flat.mul_(2)
            expected = X.clone()
            expected[0, 3] = 9.0
            torch.testing.assert_close(whole(x), (expected + 1) * 2)
            torch.testing.assert_close(whole(flat), ((expected + 1) * 2).view(-1))

    on_ranks(mesh, act)
