"""Wrong input gives one clear error, and the compiled function still works afterwards."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samite
from samite import Partial, Replicate, Shard
from samite.errors import CaptureError, ConfigError, InputError, MeshError, PlacementError, RuleMissing, SamiteError


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
    "no axis": ({"x": Shard(0)}, "Shard(dim=0) says for no axis", 'name the axis of the mesh: {"dp": Shard(0)}'),
    "a list": ({"x": [Shard(0), Replicate()]}, "says for no axis", "name the axis"),
    "nothing": ({"x": None}, "None says for no axis", "name the axis"),
    "the number of an axis": ({"x": {0: Shard(0)}}, "0 is not the name of an axis", '"dp"'),
    "the number of an argument": ({0: {"dp": Shard(0)}}, "0 is not the name of an argument", '"x"'),
    "a class": ({"x": {"dp": Shard}}, "is not a placement", "samite.Shard(dim)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_placements(case: str) -> None:
    placements, what, hint = REFUSED[case]
    with pytest.raises(PlacementError) as caught:
        compiled(placements, dp=2, tp=2)(nn.Linear(4, 4), torch.randn(4, 4))
    assert what in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.parametrize("dim", ["a", True, 1.0, None])
def test_a_dim_that_is_no_number(dim: Any) -> None:
    with pytest.raises(PlacementError, match=r"^Shard\(.*\) is not a placement"):
        Shard(dim)
    assert Shard(np.int64(1)) == Shard(1)
    with pytest.raises(PlacementError, match='no reduction "3"'):
        Partial(3)  # type: ignore[arg-type]


OPTIONS: dict[str, tuple[dict[str, Any], type[SamiteError], str]] = {
    "a backend for a mesh": ({"mesh": "cpu"}, MeshError, "mesh must be a mesh, have 'cpu'"),
    "sizes for a mesh": ({"mesh": {"dp": 2}}, MeshError, "mesh must be a mesh"),
    "an unknown mode": ({"mode": "inductr"}, ConfigError, "no mode 'inductr'[\\s\\S]*\"inductor\""),
    "a word for dynamic": ({"dynamic": "yes"}, ConfigError, "dynamic is True, False or None, have 'yes'"),
    "nothing for placements": ({"placements": None}, PlacementError, "placements must be"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options(case: str) -> None:
    options, kind, message = OPTIONS[case]
    given = {"mesh": samite.mesh("cpu", engine="lockstep", dp=2), **options}
    with pytest.raises(kind, match=message):
        samite.compile(forward, **given)
    with pytest.raises(kind, match=message):
        samite.compile(**given)


async def later(x: torch.Tensor) -> torch.Tensor:
    return x


def one_by_one(x: torch.Tensor) -> Any:
    yield x


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (3, "a int"), ("forward", "a str"), (torch.ones(2), "a Tensor"), (nn.Linear, "the class Linear"),
        (samite.mesh("cpu", dp=2), "a mesh"), (later, "bit by bit"), (one_by_one, "bit by bit"),
    ],
)  # fmt: skip
def test_what_is_no_function(function: Any, what: str) -> None:
    with pytest.raises(InputError, match=what):
        samite.compile(function)
    with pytest.raises(InputError, match=what):
        samite.compile(mesh=samite.mesh("cpu", dp=2))(function)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"engine": 3}, "an engine is a name, have 3"),
        ({"options": 3}, "options must map names to values, have 3"),
    ],
)
def test_meshes(given: dict[str, Any], message: str) -> None:
    with pytest.raises(MeshError, match=message):
        samite.mesh("cpu", dp=2, **given)
    for backend in (3, [], ["cpu", 3]):
        with pytest.raises(MeshError, match="a backend is a name, or a list of names"):
            samite.mesh(backend, dp=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("lockstep", 'the lockstep engine has no option "debug_cheks"[\\s\\S]*did you mean "debug_checks"'),
        ("inprocess", 'the inprocess engine has no option "debug_cheks"'),
    ],
)
def test_options_that_an_engine_has_not(engine: str, message: str) -> None:
    mesh = samite.mesh("cpu", engine=engine, options={"debug_cheks": False}, dp=1)
    with pytest.raises(ConfigError, match=message):
        samite.tensor(torch.ones(2), mesh)


@pytest.mark.parametrize("mesh", ["cpu", {"dp": 2}, None])
def test_what_is_no_mesh(mesh: Any) -> None:
    for make in (
        lambda: samite.tensor(torch.ones(2), mesh, {}),
        lambda: samite.from_local(torch.ones(2), mesh),
        lambda: samite.zeros((2,), mesh),
        lambda: samite.randn((2,), mesh),
    ):
        with pytest.raises(MeshError, match=r"a mesh is what samite\.mesh makes, have"):
            make()


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ([Shard(0)], "says for no axis"), (Shard(0), "says for no axis"), (None, "None says for no axis"),
        ({"dp": Shard(7)}, "no dim 7"), ({"dp": Partial()}, "cannot be asked"),
    ],
)  # fmt: skip
def test_wishes_for_values(placements: Any, message: str) -> None:
    """Outside of a compiled function as well as inside."""
    wish = samite.compile(
        lambda x: samite.constrain(x * 2, placements), mesh=samite.mesh("cpu", engine="lockstep", dp=2)
    )
    for act in (lambda x: samite.constrain(x, placements), wish):
        with pytest.raises(PlacementError, match=message):
            act(torch.ones(4, 4))
    with pytest.raises(InputError, match="constrain takes a tensor, have a list"):
        samite.constrain([1.0], {"dp": Shard(0)})  # type: ignore[arg-type]


def test_a_wish_for_a_tensor_that_lies_on_a_mesh() -> None:
    x = samite.tensor(torch.ones(4), samite.mesh("cpu", engine="lockstep", dp=2), {"dp": Shard(0)})
    assert samite.constrain(x, {"dp": Replicate()}) is x
    with pytest.raises(PlacementError, match='the mesh has no axis "pd"'):
        samite.constrain(x, {"pd": Shard(0)})


WRONG: dict[str, tuple[Callable[..., Any], str, str]] = {
    "a layer": (
        lambda x: F.linear(x, torch.ones(3, 6), torch.ones(3)),
        r"^linear: .*reduction dim",
        "float32[4, 5], float32[3, 6], float32[3]",
    ),
    "a sum": (lambda x: x + torch.ones(3), "^add: ", "float32[4, 5], float32[3]"),
    "a view": (lambda x: x.view(7, 3), "^view: shape .* is invalid", "float32[4, 5]"),
    "an index": (lambda x: x[9], "^__getitem__: index 9 is out of bounds", "float32[4, 5]"),
    "a loss": (lambda x: F.cross_entropy(x, x.argmax(0)), "^cross_entropy_loss: ", "float32[4, 5], int64[5]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_shapes_that_do_not_fit_at_the_first_call(
    case: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The op, the line and the shapes, and nothing else."""
    function, what, shapes = WRONG[case]
    with pytest.raises(InputError, match=what) as caught:
        samite.compile(function, mesh=samite.mesh("cpu", engine="lockstep", dp=1))(torch.ones(4, 5))
    assert shapes in caught.value.help
    assert "\n" not in caught.value.what
    assert caught.value.where
    assert caught.value.__suppress_context__
    assert "meta" not in capfd.readouterr().err
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_errors_of_the_users_own_code_pass() -> None:
    compiled = samite.compile(lambda x: {}["key"], mesh=samite.mesh("cpu", engine="lockstep", dp=1))
    with pytest.raises(KeyError, match="key"):
        compiled(torch.ones(2))


def test_arrays_and_quantized_tensors() -> None:
    compiled = samite.compile(lambda x: x * 2, mesh=samite.mesh("cpu", engine="lockstep", dp=1))
    with pytest.raises(InputError, match=r"x is a numpy array[\s\S]*torch\.from_numpy\(x\)"):
        compiled(np.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(CaptureError, match="x is a quantized tensor"):
        compiled(quantized)


def test_a_mesh_larger_than_one_device() -> None:
    mesh = samite.mesh("cpu", engine="inprocess", dp=2)
    with pytest.raises(MeshError, match=r'inprocess engine runs 1 at most[\s\S]*engine="local"'):
        samite.compile(forward, mesh=mesh)(nn.Linear(4, 4), torch.randn(4, 4))


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


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def test_a_tied_weight_is_placed_by_any_of_its_names_and_not_by_two() -> None:
    model, x = Tied(), torch.randn(4, 4)
    want = model(x).detach()
    contradiction = {"model.first.weight": {"dp": Shard(0)}, "model.second.*": {"dp": Shard(1)}}
    with pytest.raises(PlacementError, match=r'"model.first.weight" and "model.second.weight" are one.*dim=0.*dim=1'):
        compiled(contradiction).lower(model, x)
    for name in ("model.first.weight", "model.second.weight", "model.second.w*"):
        _, built = compiled({name: {"dp": Shard(1)}}).lower(model, x)
        assert str(built.program.arguments[0].layout) == "[4, 4:dp]"
    torch.testing.assert_close(compiled({"model.second.weight": {"dp": Shard(1)}})(model, x).read().detach(), want)
