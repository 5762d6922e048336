"""What a user tries with tensors, done with distributed ones: the parts of torch's API that are seldom thought of."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samite
from rank_threads import check, mesh_of, on_ranks, whole
from samite import Shard
from samite.errors import InputError, SamiteError
from samite.mesh import Mesh
from samite.runtime.session import session_of

X, Y = torch.randn(6, 8), torch.randn(6, 8)
SPLIT: dict[str, Any] = {"dp": Shard(0), "tp": Shard(1)}
MASK = X > 0


@pytest.fixture(scope="module")
def driven() -> Iterator[Mesh]:
    """A mesh that this process drives: where one thread's autograd does what a process's does."""
    made = samite.mesh("cpu", engine="lockstep", dp=2, tp=2)
    yield made
    session_of(made).close()


def selected(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[x > 0] * 2, x[MASK], x[MASK[:, 0]], x.masked_select(y > 0), torch.combinations(x[0])


def found(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    counted = (x.detach() * 3).round().long()
    return (x.nonzero(), *torch.where(x > y), counted.unique(), (counted.abs().flatten()).bincount())


def assigned(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x * 1
    x[x > 1] = 0.5
    x[y > 0] *= 2
    x[MASK] = torch.arange(float(MASK.sum()))
    x[(y < 0)[:, 0]] += y[0]
    return (x,)


def repeated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(torch.tensor([0, 1, 2, 0, 3, 1]), 0)


def lists(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Plain tensors among distributed ones."""
    tensors, others = [x * 1, torch.ones(6, 8), torch.ones(6, 8), y * 1], [torch.full((6, 8), 2.0), y, torch.ones(8), x]
    with torch.no_grad():
        torch._foreach_add_(tensors, others)
        torch._foreach_mul_(tensors, 2.0)
    return [*tensors, *torch._foreach_mul(tensors, others)]


def powers(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x * 1
    z[0].copy_(1)  # type: ignore[arg-type]
    z.pow_(2)
    z **= 1.5
    whole = (y.detach() * 9).int()
    shifted = whole << 2
    shifted >>= 1
    return z, shifted, 1 << whole.abs().clamp(max=3)


API: dict[str, Callable[..., Any]] = {
    "masks": selected,
    "what is found": found,
    "masks that are written through": assigned,
    "repeats": repeated,
    "powers and shifts in place": powers,
    "lists": lists,
    "weight norm": lambda x, y: torch._weight_norm(x, y[:, :1].abs() + 1, 0),
}


LAYERS = [
    nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first, activation=activation).eval()
    for first, activation in ((False, "relu"), (True, "gelu"))
]
ATTENDS = nn.MultiheadAttention(8, 2, batch_first=True).eval()


def attention(x: torch.Tensor) -> list[torch.Tensor]:
    """torch takes a path of its own here, which is one op a layer."""
    batch, hidden = x.detach().unflatten(0, (2, 3)), torch.tensor([[False, False, True], [False, True, True]])
    with torch.no_grad():
        out, weights = ATTENDS(batch, batch, batch)
        return [
            *(layer(batch) for layer in LAYERS),
            LAYERS[0](batch, src_mask=torch.ones(3, 3).triu(1).bool()),
            LAYERS[1](batch, src_key_padding_mask=hidden),
            ATTENDS(batch, batch, batch, average_attn_weights=False)[1],
            out,
            weights,
        ]


API["attention without gradients"] = lambda x, y: attention(x)


@pytest.mark.parametrize("name", API)
def test_it_is_that_of_one_device(name: str) -> None:
    check(API[name], {"x": X, "y": Y}, {"x": SPLIT, "y": {"tp": Shard(0)}}, mesh_of(dp=2, tp=2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["masks", "what is found", "masks that are written through", "lists"])
def test_a_mesh_that_this_process_drives(name: str, driven: Mesh) -> None:
    def run(make: Callable[..., torch.Tensor]) -> list[Any]:
        x, y = make(X, SPLIT).requires_grad_(), make(Y, {"tp": Shard(0)})
        results = list(API[name](x, y))
        for result in results:
            if result.requires_grad:
                result.sum().backward(retain_graph=True)
        return whole([*(result.detach() for result in results), x.grad])

    torch.testing.assert_close(run(lambda x, p: samite.tensor(x, driven, p)), run(lambda x, p: x.clone()))


def test_a_mask_is_read_and_that_is_said(driven: Mesh, caplog: pytest.LogCaptureFixture) -> None:
    x = samite.tensor(X, driven, SPLIT)
    with caplog.at_level(logging.DEBUG, logger="samite"):
        x[x > 0]
    assert "indexing takes the whole of a mask laid out as [6:dp, 8:tp]" in caplog.text


@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_lstm(bidirectional: bool) -> None:
    mesh, lstm, x = mesh_of(dp=2), nn.LSTM(8, 5, bidirectional=bidirectional, num_layers=2), torch.randn(4, 3, 8)

    def run(lstm: nn.Module, x: torch.Tensor) -> list[Any]:
        y, (h, c) = lstm(x.requires_grad_())
        (y.square().sum() + (h * c).sum()).backward()
        return whole([y.detach(), h.detach(), c.detach(), x.grad, *(p.grad for p in lstm.parameters())])

    expected = run(copy.deepcopy(lstm), x.clone())

    def act() -> None:
        mine = samite.distribute_module(copy.deepcopy(lstm), mesh)
        torch.testing.assert_close(run(mine, samite.tensor(x, mesh, {"dp": Shard(1)})), expected, rtol=1e-4, atol=1e-5)

    on_ranks(mesh, act)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
class TestTransforms:
    """Forward differentiation is of the process in torch, so of one rank."""

    @pytest.mark.parametrize(
        "transform",
        [
            lambda x, y: torch.func.grad(lambda x: (x.sin() * x).sum())(x),
            lambda x, y: torch.func.jvp(lambda x: x.sin() * 2 / (1 + x**2), (x,), (y,)),
            lambda x, y: torch.func.vmap(lambda x, y: x.softmax(0) @ y)(x, y),
            lambda x, y: torch.func.jacrev(lambda x: x.sin() * 2)(x[0]),
            lambda x, y: torch.func.hessian(lambda x: x.sin().prod())(x[0]),
            lambda x, y: torch.autograd.functional.vhp(lambda x: x.sin().sum(), x, y),
        ],
        ids=["grad", "jvp", "vmap", "jacrev", "hessian", "vhp"],
    )
    def test_of_functions(self, transform: Callable[..., Any], driven: Mesh) -> None:
        x, y = samite.tensor(X, driven, SPLIT), samite.tensor(Y, driven, {"tp": Shard(0)})
        expected = transform(X, Y)
        expected = list(expected) if isinstance(expected, tuple) else expected
        torch.testing.assert_close(whole(transform(x, y)), expected)

    def test_gradients_are_checked(self, driven: Mesh) -> None:
        x = samite.tensor(torch.randn(3, 2).double(), driven, {"dp": Shard(0)}, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: (x * x).sum(0), (x,))

    @pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
    def test_anomalies_are_looked_for(self, driven: Mesh) -> None:
        x = samite.tensor(X, driven, SPLIT, requires_grad=True)
        with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values"):
            (x * 0).sqrt().mul(0).sum().backward()


def test_what_is_written_to_data_is_no_change_to_autograd() -> None:
    mesh = mesh_of(dp=2)

    def act() -> None:
        x = samite.tensor(X, mesh, {"dp": Shard(1)}, requires_grad=True)
        flat = x.detach().view(-1)  # which has to gather
        assert whole(flat).equal(X.view(-1))
        squares = (x * x).sum()
        x.data.mul_(2)
        squares.backward()  # of the values that it finds, as on one device
        torch.testing.assert_close(whole(x.grad), 4 * X)
        torch.testing.assert_close(whole(flat), 2 * X.view(-1))
        x.to_local().detach().zero_()
        assert whole(flat).eq(0).all()

    on_ranks(mesh, act)


def test_deep_copies_are_those_of_torch() -> None:
    mesh = mesh_of(dp=2)

    def act() -> None:
        x = samite.tensor(X, mesh, {"dp": Shard(0)}, requires_grad=True)
        with pytest.raises(RuntimeError, match="graph leaves"):
            copy.deepcopy(x * 2)
        parameter = nn.Parameter(x.detach())
        (x * 2 + parameter).sum().backward()
        assert whole(copy.deepcopy(x).grad).eq(2).all()
        assert copy.deepcopy(parameter).grad is None

    on_ranks(mesh, act)


def test_shapes_alone_are_on_meta() -> None:
    mesh = mesh_of(dp=2)

    def act() -> None:
        x = samite.tensor(X, mesh, {"dp": Shard(0)})
        for made in (x.to("meta"), torch.zeros_like(x, device="meta"), x.t().to("meta", torch.int8)):
            assert type(made) is torch.Tensor
            assert made.is_meta
        assert x.to("cpu") is x
        with pytest.raises(InputError, match='on "cpu" is asked for on "vulkan"'):
            torch.empty_like(x, device="vulkan")

    on_ranks(mesh, act)


@pytest.mark.parametrize("name", ["apply_", "map_", "map2_"])
def test_python_functions_of_elements_are_refused(name: str) -> None:
    mesh = mesh_of(dp=2)

    def act() -> None:
        x = samite.tensor(X, mesh, {"dp": Shard(0)})
        getattr(x, name)(*([x] * ("apply_", "map_", "map2_").index(name)), lambda *values: values[0])

    with pytest.raises(SamiteError, match=f"{name}\\(\\) of a tensor that lies on a mesh"):
        on_ranks(mesh, act)


def test_numbers_without_a_counter_are_those_of_torch(driven: Mesh) -> None:
    rates = torch.full((6, 8), 3.0)
    for draw in (torch.poisson, lambda x: x.clone().random_(7), lambda x: torch.binomial(x, x / 6)):
        torch.manual_seed(4)
        expected = draw(rates)
        torch.manual_seed(4)
        torch.testing.assert_close(whole(draw(samite.tensor(rates, driven, SPLIT))), expected)


def test_kinds_of_tensors_that_have_no_layout_are_refused(driven: Mesh) -> None:
    x = samite.tensor(X, driven, SPLIT)
    with pytest.raises(InputError, match="without data"):
        torch.nested.nested_tensor([x, x])
    with pytest.raises(SamiteError, match="sparse"):
        x.to_sparse()


def test_random_tensors_like_another() -> None:
    mesh = mesh_of(dp=2)

    def act() -> None:
        x = samite.tensor(X, mesh, {"dp": Shard(0)})
        for made in (torch.rand_like(x), torch.randn_like(x), F.dropout(x)):
            assert made.placements == {"dp": Shard(0)}

    on_ranks(mesh, act)
