"""Handles of values that only some ranks hold: every way to use or read one gives the single-device result."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import samite
from samite import Shard
from samite.errors import LayoutError
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.session import session_of

MESHES = [{"pp": 2, "dp": 2}, {"dp": 2, "pp": 3}, {"pp": 2}]


@pytest.fixture(params=MESHES, ids=str)
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    made = samite.mesh("cpu", engine="lockstep", **request.param)
    yield made
    session_of(made).close()


def pin(x: Any, stage: int) -> Any:
    """`x`, held by the ranks of one stage from now on."""
    x.remote.send(x.remote.layout.pinned({"pp": stage}))
    assert x.distribution.at == (("pp", stage),)
    return x


def pinned(value: torch.Tensor, mesh: Mesh, stage: int = 1) -> Any:
    """Unevenly split where there is an axis for it."""
    return pin(samite.tensor(value, mesh, {"dp": Shard(0)} if "dp" in mesh else {}), stage)


VALUE = torch.arange(15.0).reshape(5, 3) - 7

READS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda x: x.norm(),
    "add": lambda x: x + 1,
    "matmul": lambda x: x.t() @ x,
    "view": lambda x: x[1:4, 2],
    "item": lambda x: x.sum().item(),
    "equal": lambda x: torch.equal(x, VALUE),
    "nonzero": lambda x: x.nonzero(),
    "foreach": lambda x: torch._foreach_norm([x, x]),
    "detach": lambda x: x.detach() * 2,
    "numpy": lambda x: torch.from_numpy(x.numpy().copy()),
    "tolist": lambda x: torch.tensor(x.tolist()),
    "read": lambda x: x.clone(),
    "deepcopy": lambda x: copy.deepcopy(x),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}


def whole(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [whole(item) for item in x]
    return x.full_tensor() if isinstance(x, samite.Tensor) else x


@pytest.mark.parametrize("name", READS)
def test_reads_and_ops_give_the_value(mesh: Mesh, name: str) -> None:
    torch.testing.assert_close(whole(READS[name](pinned(VALUE, mesh))), READS[name](VALUE))


def test_two_homes_meet(mesh: Mesh) -> None:
    x, y = pinned(VALUE, mesh, 0), pinned(2 * VALUE, mesh, 1)
    torch.testing.assert_close(whole(x * y), VALUE * 2 * VALUE)


def test_reading_leaves_it_where_it_is(mesh: Mesh) -> None:
    x = pinned(VALUE, mesh)
    assert torch.equal(x.full_tensor(), VALUE)
    assert torch.equal(torch.tensor(x.tolist()), VALUE)
    assert "at pp=1" in repr(x)
    assert x.distribution.at == (("pp", 1),)


def test_ops_lay_it_out_on_all_ranks(mesh: Mesh) -> None:
    x = pinned(VALUE, mesh)
    x + 1
    assert x.distribution == pinned(VALUE, mesh).distribution.unpinned()


def test_what_placements_cannot_say_is_an_error(mesh: Mesh) -> None:
    x = pinned(VALUE, mesh)
    with pytest.raises(LayoutError, match="only some ranks hold it"):
        _ = x.placements
    spread = x.redistribute({"dp": Shard(1)} if "dp" in mesh else {})
    assert spread.distribution.at == ()
    torch.testing.assert_close(spread.full_tensor(), VALUE)


def test_moves_are_said(mesh: Mesh, caplog: pytest.LogCaptureFixture) -> None:
    x = pinned(VALUE, mesh)
    with caplog.at_level(logging.DEBUG, "samite"):
        pin(x, 0)
    assert "at pp=1 is read and written as" in caplog.text
    assert "at pp=0" in caplog.text
    torch.testing.assert_close(x.full_tensor(), VALUE)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "samite"):
        x.remote.send(x.remote.layout)
    assert not caplog.text


def test_writes_reach_it(mesh: Mesh) -> None:
    x, expected = pinned(VALUE, mesh), VALUE.clone()
    row = x[2]
    for y in (x, expected):
        y.add_(1)
        y[1:3].mul_(2)
    pin(x, 0)
    torch.testing.assert_close(x.full_tensor(), expected)
    torch.testing.assert_close(row.full_tensor(), expected[2])
    x.copy_(VALUE)
    pin(x, 1)
    torch.testing.assert_close(x.full_tensor(), VALUE)


def test_gradients_flow_through_it(mesh: Mesh) -> None:
    def act(w: Any) -> list[Any]:
        w.requires_grad_()
        y = (w * w).sum() + (w[1:] ** 3).sum()
        y.backward()
        return [y, w.grad]

    w = pinned(VALUE, mesh)
    found = [whole(x.detach()) for x in act(w)]
    torch.testing.assert_close(found, [x.detach() for x in act(VALUE.clone())])
    pin(w.grad, 0)
    pin(w, 1)
    (w.redistribute({}) * 2).sum().backward()
    torch.testing.assert_close(w.grad.full_tensor(), 2 * VALUE + torch.cat([torch.zeros(1, 3), 3 * VALUE[1:] ** 2]) + 2)


def test_unpinned_and_mixed_values_at_a_program(mesh: Mesh) -> None:
    @samite.compile(mesh=mesh, placements={"x": {"dp": Shard(0)} if "dp" in mesh else {}})
    def scaled(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        w.mul_(2)
        return x @ w

    w, x = pinned(VALUE[:3].clone(), mesh, 0), pinned(VALUE, mesh, 1)
    for time in (2, 4, 8):
        torch.testing.assert_close(scaled(w, x).full_tensor(), VALUE @ (time * VALUE[:3]))
        pin(w, time % 3 % 2)
        pin(x, time % 2)
    torch.testing.assert_close(w.full_tensor(), 8 * VALUE[:3])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


def finish(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    return norm


def pin_all(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Each layer at a stage of its own, as a pipeline leaves it."""
    for name, p in model.named_parameters():
        stage = int(name[0]) // 2
        held = [p, p.grad, *(v for v in optimizer.state.get(p, {}).values() if isinstance(v, torch.Tensor))]
        for value in held:
            if isinstance(value, samite.Tensor):
                pin(value, stage)


def test_training_goes_on_from_pinned_state(mesh: Mesh) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    plain = copy.deepcopy(model)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, plain)]
    x, y = torch.randn(5, 3), torch.randn(5, 2)
    step = samite.compile(train, mesh=mesh, placements={"x": {"dp": Shard(0)}} if "dp" in mesh else {})
    saved: list[Any] = []
    for time in range(4):
        loss, expected = step(model, optimizers[0], x, y), train(plain, optimizers[1], x, y)
        torch.testing.assert_close(loss.full_tensor().detach(), expected.detach())
        pin_all(model, optimizers[0])
        norms = [finish(model, optimizers[0]), finish(plain, optimizers[1])]
        torch.testing.assert_close(whole(norms[0]), norms[1])
        pin_all(model, optimizers[0])
        states = [m.state_dict() for m in (model, plain)]
        for name, value in states[1].items():
            torch.testing.assert_close(whole(states[0][name]), value)
        if time == 1:
            buffer = io.BytesIO()
            torch.save(model.state_dict(), buffer)
            buffer.seek(0)
            saved = [torch.load(buffer), copy.deepcopy(states[1])]
        if time == 2:
            for m, state in zip((model, plain), saved, strict=True):
                m.load_state_dict(state)
    assert type(model[0].weight.data) is samite.Tensor


def test_a_layout_of_a_size_1_axis_pins_nothing() -> None:
    mesh = samite.mesh("cpu", engine="lockstep", pp=1, dp=2)
    x = samite.tensor(VALUE, mesh, {"dp": Shard(0)})
    x.remote.send(Layout.parse("[5:dp, 3] at pp=0"))
    assert x.distribution == Layout.parse("[5:dp, 3]")
    torch.testing.assert_close((x + 1).full_tensor(), VALUE + 1)
    session_of(mesh).close()
