"""Between layouts and DTensor's words."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
import torch.distributed.tensor as dt
from hypothesis import assume, given
from hypothesis import strategies as st

from samite.errors import LayoutError, PlacementError
from samite.layout import Layout, from_placements, places, to_placements
from samite.mesh import Mesh
from samite.placement import Partial, Placement, Replicate, Shard

from .layout_simulator import layouts, meshes, shapes

MESH = Mesh(("dp", "tp"), (2, 4))


@pytest.mark.parametrize(
    "shape, placements, text",
    [
        ((8, 4), {}, "[8, 4]"),
        ((8, 4), {"dp": Shard(0)}, "[8:dp, 4]"),
        ((8, 4), {"tp": Shard(-1), "dp": Shard(-2)}, "[8:dp, 4:tp]"),
        ((8, 4), {"tp": Shard(0), "dp": Shard(0)}, "[8:dp.tp, 4]"),
        ((8, 4), {"tp": Partial("max"), "dp": Replicate()}, "[8, 4] max(tp)"),
        ((8, 4), {"tp": dt.Shard(1), "dp": dt.Partial()}, "[8, 4:tp] sum(dp)"),
        ((), {"tp": Partial()}, "[] sum(tp)"),
        ((3, 1, 0), {"tp": Shard(0), "dp": Shard(1)}, "[3:tp, 1:dp, 0]"),
    ],
)
def test_from_placements(shape: tuple[int, ...], placements: dict[str, object], text: str) -> None:
    assert str(from_placements(shape, placements, MESH)) == text


@pytest.mark.parametrize("dim", [0, -2])
def test_an_order_of_axes(dim: int) -> None:
    both = {"dp": Shard(0), "tp": Shard(0)}
    assert str(from_placements((8, 4), both, MESH, {dim: ("tp", "dp")})) == "[8:tp.dp, 4]"
    assert str(from_placements((8, 4), both, MESH, {dim: ("dp", "tp")})) == "[8:dp.tp, 4]"
    assert str(from_placements((8, 4), both, MESH, {1: ()})) == "[8:dp.tp, 4]"


@pytest.mark.parametrize(
    "placements, order, what, help",
    [
        ({"tpp": Shard(0)}, None, 'no axis "tpp"', 'did you mean "tp"'),
        ({"tp": Shard(2)}, None, r"no dim 2 in a tensor of shape \(8, 4\)", "-2 to 1"),
        ({"tp": Shard(-3)}, None, "no dim -3", "-2 to 1"),
        ({"tp": 0}, None, "0 is not a placement", "samite.Shard"),
        ({"tp": Partial(), "dp": Partial("max")}, None, "have max and sum", "do not commute"),
        ({"dp": Shard(0)}, {0: ("dp", "dp")}, 'have "dp", "dp", need each of "dp" once', 'has "dp", "tp"'),
        ({"dp": Shard(0)}, {0: ("dp", "ep")}, 'have "dp", "ep", need each of "dp" once', 'has "dp", "tp"'),
        ({"dp": Shard(0)}, {0: ("dp", "tp")}, 'have "dp", "tp", need each of "dp" once', "Shard"),
        ({"dp": Shard(0), "tp": Shard(0)}, {0: ("tp",)}, 'have "tp", need each of "dp", "tp" once', "outermost"),
        ({"dp": Shard(0)}, {1: ("dp",)}, "order of dim 1: have .* need each of none once", "Shard"),
        ({"dp": Shard(0)}, {2: ("dp",)}, "the order of axes: no dim 2", "-2 to 1"),
    ],
)
def test_refuses(placements: dict[str, object], order: dict[int, tuple[str, ...]] | None, what: str, help: str) -> None:
    with pytest.raises(PlacementError, match=what) as error:
        from_placements((8, 4), placements, MESH, order)
    assert help in error.value.help


def test_refuses_to_split_a_number() -> None:
    with pytest.raises(PlacementError, match="no dim 0") as error:
        from_placements((), {"tp": Shard(0)}, MESH)
    assert "0-d" in error.value.help


@st.composite
def words(draw: st.DrawFn, mesh: Mesh, ndim: int, kind: str) -> dict[str, Placement]:
    """A placement for every axis."""
    choices = [Replicate(), Partial(kind), *map(Shard, range(ndim))]
    return {axis: draw(st.sampled_from(choices)) for axis in mesh}


@given(st.data(), meshes(), shapes(), st.sampled_from(["sum", "max", "min", "prod"]))
def test_round_trip(data: st.DataObject, mesh: Mesh, shape: tuple[int, ...], kind: str) -> None:
    placements = data.draw(words(mesh, len(shape), kind))
    layout = from_placements(shape, placements, mesh)
    shared = [[axis for axis in dim[0].axes if mesh[axis] > 1] for dim in layout.dims]
    uneven = [len(axes) > 1 and dim[0].padded(mesh) for axes, dim in zip(shared, layout.dims, strict=True)]
    if any(uneven) and layout == layout.canonical(mesh):
        with pytest.raises(LayoutError, match="unevenly split"):
            to_placements(layout, mesh)
    elif not any(uneven):
        assert to_placements(layout, mesh) == placements
        assert list(to_placements(layout, mesh)) == list(mesh)


@given(st.data(), meshes(), shapes(dims=2))
def test_export_is_lossless_or_an_error(data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]) -> None:
    layout = data.draw(layouts(mesh, shape))
    try:
        placements = to_placements(layout, mesh)
    except LayoutError:
        assume(False)
    again = from_placements(shape, placements, mesh)
    assert again.canonical(mesh) == layout.canonical(mesh)
    for rank in range(mesh.size):
        at = mesh.coordinates(rank)
        held = np.arange(prod(shape)).reshape(shape)[np.ix_(*(places(dim, mesh, at)[1] for dim in again.dims))]
        theirs = torch.arange(prod(shape)).reshape(shape)
        for axis, placement in placements.items():  # as DTensor cuts: torch.chunk of what is left, in mesh order
            if isinstance(placement, Shard):
                pieces = theirs.chunk(mesh[axis], placement.dim)
                theirs = pieces[at[axis]] if at[axis] < len(pieces) else theirs.narrow(placement.dim, 0, 0)
        assert held.shape == tuple(theirs.shape)
        assert (held == theirs.numpy()).all()


@pytest.mark.parametrize(
    "text, what",
    [
        ("[(3 16:tp)]", "dim 0 has 2 factors"),
        ("[4, 8:tp.dp]", 'dim 1 is split by "tp", "dp", not in mesh order "dp", "tp"'),
        ("[9:dp.tp]", 'dim 0 of size 9 is unevenly split by "dp", "tp"'),
    ],
)
def test_what_placements_cannot_say(text: str, what: str) -> None:
    with pytest.raises(LayoutError, match="cannot say") as error:
        to_placements(Layout.parse(text), MESH)
    assert what in error.value.what
    assert "redistribute" in error.value.help


def test_placements_cannot_say_where_a_value_is_pinned() -> None:
    with pytest.raises(LayoutError, match="only some ranks hold it") as error:
        to_placements(Layout.parse("[8:tp] at dp=1"), MESH)
    assert "unpinned" in error.value.help
    mesh = Mesh(("dp", "pp"), (2, 1))
    assert to_placements(Layout.parse("[8:dp] at pp=0"), mesh) == {"dp": Shard(0), "pp": Replicate()}


def test_export_knows_what_merges() -> None:
    assert to_placements(Layout.parse("[(4:dp 3)]"), MESH) == {"dp": Shard(0), "tp": Replicate()}
    assert to_placements(Layout.parse("[(2:dp 4:tp)]"), MESH) == {"dp": Shard(0), "tp": Shard(0)}


def test_export_keeps_axes_of_size_1() -> None:
    mesh = Mesh(("dp", "tp"), (1, 4))
    placements = {"dp": Shard(0), "tp": Partial()}
    assert to_placements(from_placements((8,), placements, mesh), mesh) == placements


def test_export_names_an_axis_that_the_mesh_lacks() -> None:
    with pytest.raises(LayoutError, match='axis "ep"'):
        to_placements(Layout.parse("[8:ep]"), MESH)
