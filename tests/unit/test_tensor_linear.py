"""Linear layers of distributed modules: one op each way, and what `nn.Linear` is in every other respect."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import samite
from rank_threads import mesh_of, on_ranks, whole
from samite import Shard
from samite.runtime.session import session_of
from samite.tensor import Tensor

X = torch.randn(2, 3, 6)
PLACEMENTS: dict[str, dict[str, Any]] = {
    "columns": {"weight": {"tp": Shard(0)}, "bias": {"tp": Shard(0)}},
    "rows": {"weight": {"tp": Shard(1)}},
    "fully sharded": {"*": {"dp": Shard(0)}},
    "both": {"weight": {"dp": Shard(0), "tp": Shard(1)}},
}


def results(linear: nn.Module, x: torch.Tensor) -> list[Any]:
    x = x.requires_grad_()
    y = linear(x)
    (y * y).sum().backward()
    return whole([y.detach(), x.grad, *(p.grad for p in linear.parameters())])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("split", PLACEMENTS)
@pytest.mark.parametrize("shape", [(2, 3, 6), (5, 6), (6,)])
def test_it_is_that_of_one_device(split: str, bias: bool, shape: tuple[int, ...]) -> None:
    mesh, linear, x = mesh_of(dp=2, tp=2), nn.Linear(6, 5, bias=bias), torch.randn(shape)
    expected = results(copy.deepcopy(linear), x.clone())
    placements = {name: by for name, by in PLACEMENTS[split].items() if bias or name != "bias"}

    def act() -> None:
        mine = samite.distribute_module(copy.deepcopy(linear), mesh, placements)
        where = {"dp": Shard(0)} if len(shape) > 1 else {"tp": Shard(0)}
        torch.testing.assert_close(results(mine, samite.tensor(x, mesh, where)), expected, rtol=1e-4, atol=1e-5)

    on_ranks(mesh, act)


def test_it_is_one_op_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = samite.mesh("cpu", engine="inprocess", tp=1)
    linear = samite.distribute_module(nn.Linear(6, 5), mesh)
    x = samite.tensor(X, mesh, requires_grad=True)
    linear(x).sum().backward()
    seen: list[str] = []
    dispatch = Tensor.__torch_dispatch__

    def noted(cls: type[Tensor], func: Any, *rest: Any) -> Any:
        seen.append(str(func))
        return dispatch(func, *rest)

    monkeypatch.setattr(Tensor, "__torch_dispatch__", classmethod(noted))
    out = linear(x)
    assert seen == ["linear"]
    out.backward(samite.ones((2, 3, 5), mesh))
    assert [name for name in seen if "detach" not in name and "add" not in name][-1] == "the gradients of linear"


def test_gradients_that_are_not_wanted_are_not_computed() -> None:
    mesh = mesh_of(tp=2)

    def act() -> None:
        linear = samite.distribute_module(nn.Linear(6, 5), mesh, {"weight": {"tp": Shard(0)}})
        linear.weight.requires_grad_(False)
        linear(samite.tensor(X, mesh)).sum().backward()
        assert linear.weight.grad is None
        assert whole(linear.bias.grad).eq(6).all()

    on_ranks(mesh, act)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_who_wants_to_see_torchs_ops_does() -> None:
    mesh, linear = samite.mesh("cpu", engine="lockstep", tp=2), nn.Linear(6, 5)
    mine = samite.distribute_module(copy.deepcopy(linear), mesh, {"weight": {"tp": Shard(0)}})
    x, tangent = samite.tensor(X, mesh), samite.tensor(torch.ones_like(X), mesh)

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    with Seeing():
        mine(x)
    assert "aten.addmm.default" in names
    _, moved = torch.func.jvp(mine, (x,), (tangent,))
    torch.testing.assert_close(whole(moved), torch.ones_like(X) @ linear.weight.detach().t())
    each = torch.func.vmap(mine)(x)
    torch.testing.assert_close(whole(each), linear(X).detach())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert mine(x).dtype == torch.bfloat16
    session_of(mesh).close()


def test_it_is_copied_and_pickled() -> None:
    mesh, linear = samite.mesh("cpu", engine="inprocess", tp=1), nn.Linear(6, 5)
    mine = samite.distribute_module(copy.deepcopy(linear), mesh)
    assert isinstance(mine, nn.Linear)
    assert repr(mine) == repr(linear)
    for other in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        x = samite.tensor(X, mesh) if isinstance(other.weight, Tensor) else X
        torch.testing.assert_close(whole(other(x)).detach(), linear(X).detach())
