"""Wrong input gives one clear error, and the compiled function still works afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import samite
from samite import Partial, Replicate, Shard
from samite.errors import CaptureError, InputError, MeshError, PlacementError, RuleMissing, SamiteError


def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


def compiled(placements: Any, **axes: int) -> samite.api.Compiled:
    mesh = samite.mesh("cpu", engine="lockstep", **(axes or {"dp": 2}))
    return samite.compile(forward, mesh=mesh, placements=placements)


REFUSED: dict[str, tuple[Any, str, str]] = {
    "an unknown axis": ({"x": {"pd": Shard(0)}}, '"pd"', '"dp"'),
    "an unknown dim": ({"x": {"dp": Shard(2)}}, "no dim 2", "from -2 to 1"),
    "two reductions": ({"x": {"dp": Partial("max"), "tp": Partial()}}, "max", "sum"),
    "no placement": ({"x": {"dp": "left"}}, "left", "Shard"),
    "a name that is not there": ({"model.wieght": {"dp": Shard(0)}}, 'model.wieght" names no argument', "model.weight"),
    "no mapping": ([Shard(0)], "placements must be", "mapping"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_placements(case: str) -> None:
    placements, what, hint = REFUSED[case]
    with pytest.raises(PlacementError) as caught:
        compiled(placements, dp=2, tp=2)(nn.Linear(4, 4), torch.randn(4, 4))
    assert what in str(caught.value)
    assert hint in str(caught.value)


def test_a_mesh_larger_than_the_engine_allows() -> None:
    with pytest.raises(MeshError, match=r"72 ranks.*lockstep.*64"):
        compiled({}, dp=72)(nn.Linear(4, 4), torch.randn(4, 4))


def test_a_mesh_without_axes() -> None:
    with pytest.raises(MeshError, match="needs an axis"):
        samite.mesh("cpu")


def test_an_unknown_engine() -> None:
    mesh = samite.mesh("cpu", engine="lockstpe", dp=2)
    with pytest.raises(SamiteError, match='"lockstpe" is not installed') as caught:
        samite.compile(forward, mesh=mesh)(nn.Linear(4, 4), torch.randn(4, 4))
    assert "lockstep" in str(caught.value)


def test_an_unknown_backend() -> None:
    mesh = samite.mesh("gpu_triton", engine="inprocess", dp=1)
    with pytest.raises(SamiteError, match='"gpu_triton" is not installed') as caught:
        samite.compile(forward, mesh=mesh)(nn.Linear(4, 4), torch.randn(4, 4))
    assert "pip install samite-gpu-triton" in str(caught.value)


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        (torch.randn(4, 5), "(4, 5)"),
        (torch.ones(4, 4, dtype=torch.int64), "int64"),
    ],
    ids=["shape", "dtype"],
)
def test_a_batch_that_the_model_cannot_take(batch: torch.Tensor, what: str) -> None:
    run, model, x = compiled({"x": {"dp": Shard(0)}}), nn.Linear(4, 4), torch.randn(4, 4)
    torch.testing.assert_close(run(model, x).clone(), model(x).detach())
    with pytest.raises(InputError) as caught:
        run(model, batch)
    assert "x is" in str(caught.value)
    assert what in str(caught.value)
    assert "(4, 4) torch.float32" in str(caught.value)
    torch.testing.assert_close(run(model, x).clone(), model(x).detach())


def test_another_batch_size_is_another_program() -> None:
    run, model = compiled({"x": {"dp": Shard(0)}}), nn.Linear(4, 4)
    for size in (4, 3, 1, 4):
        x = torch.randn(size, 4)
        torch.testing.assert_close(run(model, x).clone(), model(x).detach())


def test_one_tensor_for_two_parameters() -> None:
    """As an autoencoder's step is called: its input is its target."""
    mesh, batch, x = samite.mesh("cpu", engine="lockstep", dp=2), {"dp": Shard(0)}, torch.ones(4)
    run = samite.compile(lambda x, y: (x + y).sum(), mesh=mesh, placements={"x": batch, "y": batch})
    assert run(x, x).item() == 8
    assert run(x, x.clone()).item() == 8
    run = samite.compile(lambda x, y: (x + y).sum(), mesh=mesh, placements={"x": batch, "y": {"dp": Replicate()}})
    assert run(x, x.clone()).item() == 8
    with pytest.raises(PlacementError, match=r"one tensor here(.|\n)*y\.clone"):
        run(x, x)


def test_a_call_that_compiles_every_time_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    mesh = samite.mesh("cpu", engine="lockstep", dp=2)
    run = samite.compile(lambda x, k: x * k, mesh=mesh, placements={"x": {"dp": Shard(0)}})
    for k in range(9):
        assert run(torch.ones(4), k).tolist() == [k] * 4
    assert "compiling program number 9" in caplog.text


def test_a_tensor_on_another_device() -> None:
    with pytest.raises(InputError, match=r"x is on meta.*computes on the cpu"):
        compiled({})(nn.Linear(4, 4), torch.randn(4, 4, device="meta"))


def test_an_op_without_a_rule() -> None:
    with torch.library._scoped_library("unruly", "DEF") as library:
        library.define("op(Tensor x) -> Tensor")
        library.impl("op", lambda x: x + 1, "CompositeExplicitAutograd")

        def step(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.unruly.op(x)

        mesh = samite.mesh("cpu", engine="lockstep", dp=2)
        with pytest.raises(RuleMissing) as caught:
            samite.compile(step, mesh=mesh)(torch.randn(4))
    text = str(caught.value)
    assert "unruly.op: no sharding rule" in text
    assert "test_bad_input.py:" in text
    assert "samite.rules.rule(" in text


def reads_item(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def branches(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize("function", [reads_item, branches])
def test_what_cannot_be_captured(function: Callable[..., Any]) -> None:
    mesh = samite.mesh("cpu", engine="lockstep", dp=2)
    with pytest.raises(CaptureError) as caught:
        samite.compile(function, mesh=mesh)(torch.randn(4))
    assert "test_bad_input.py:" in str(caught.value)
    assert "help:" in str(caught.value)


def test_state_is_usable_after_a_refused_call() -> None:
    model, x = nn.Linear(4, 4), torch.randn(4, 4)
    before = model.weight.detach().clone()
    with pytest.raises(PlacementError):
        compiled({"x": {"nope": Shard(0)}})(model, x)
    torch.testing.assert_close(model.weight.detach(), before)
    run = compiled({"x": {"dp": Shard(0)}, "model.weight": {"dp": Replicate()}})
    torch.testing.assert_close(run(model, x).clone(), model(x).detach())
