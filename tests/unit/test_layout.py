"""The value: shapes, text, identities, and what it refuses."""

from __future__ import annotations

import ast
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import samite.layout
from samite.errors import LayoutError
from samite.layout import IDENTITY, Factor, Layout, identity
from samite.mesh import Mesh

from .layout_simulator import REDUCE, Simulator, layouts, meshes, numbers, shapes

MESH = Mesh(("dp", "tp"), (2, 4))


def test_shapes() -> None:
    layout = Layout.parse("[8:dp, 5:tp, (3 16:dp2.tp2)] sum(pp)")
    mesh = Mesh(("dp", "tp", "dp2", "tp2", "pp"), (2, 4, 2, 3, 1))
    assert layout.shape == (8, 5, 48)
    assert layout.ndim == 3
    assert layout.local_shape(mesh) == (4, 2, 9)
    assert layout.local_size(mesh) == 72
    assert layout.axes == ("dp", "tp", "dp2", "tp2")
    assert layout.padded(mesh)
    assert not Layout.parse("[8:dp, (3 16:tp)]").padded(MESH)


def test_replicated() -> None:
    layout = Layout.replicated((4, 3))
    assert layout == Layout(((Factor(4),), (Factor(3),)))
    assert layout.is_replicated
    assert not Layout.parse("[4:dp]").is_replicated
    assert not Layout.parse("[4] max(dp)").is_replicated
    assert not Layout.parse("[4] at dp=1").is_replicated
    assert Layout.replicated(()).shape == ()
    assert Layout.replicated(()).local_size(MESH) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[] sum(tp)",
        "[8:dp, 4, (3 16:tp)]",
        "[8, 4:tp.dp] sum(pp)",
        "[0, 1:dp]",
        "[()]",
        "[8] min(a.b.c_1)",
        "[(1:a 2)]",
        "[16, 32:tp] sum(dp) at ep=0.pp=1",
        "[] at pp=10",
    ],
)
def test_text(text: str) -> None:
    assert str(Layout.parse(text)) == text


@given(st.data(), meshes(), shapes())
def test_text_parses_back(data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]) -> None:
    layout = data.draw(layouts(mesh, shape, pins=True))
    assert Layout.parse(str(layout)) == layout
    assert str(Layout.parse(str(layout))) == str(layout)
    assert hash(Layout.parse(str(layout))) == hash(layout)


@given(st.data(), meshes(), shapes())
def test_pickles(data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]) -> None:
    layout = data.draw(layouts(mesh, shape, pins=True))
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_a_home_is_part_of_the_value() -> None:
    layout = Layout.parse("[8:dp] at pp=1.ep=0")
    assert layout.at == (("ep", 0), ("pp", 1))
    assert layout.unpinned() == Layout.parse("[8:dp]")
    assert layout.unpinned().pinned({"pp": 1, "ep": 0}) == layout
    assert layout.pinned({"pp": 0}) == Layout.parse("[8:dp] at pp=0")
    others = [layout.unpinned(), layout.pinned({"pp": 1}), layout.pinned({"pp": 1, "ep": 1})]
    assert len({layout, *others}) == 4
    assert len({hash(layout), *map(hash, others)}) == 4
    assert layout.local_shape(Mesh(("dp", "pp", "ep"), (2, 2, 2))) == (4,)
    assert [layout.held_by({"dp": 1, "pp": pp, "ep": ep}) for pp in (0, 1) for ep in (0, 1)] == [
        False,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8",
        "[8",
        "[8,4]",
        "[-1]",
        "[8:]",
        "[8:2x]",
        "[8:dp.]",
        "[8:dp..tp]",
        "[(8]",
        "[8)]",
        "[(8  4)]",
        "[8, ]",
        "[8] sum",
        "[8] sum()",
        "[8] avg(dp)",
        "[8] sum(dp) ",
        "[8]sum(dp)",
        "[8:dp]\n",
        "[8:dp, 4:dp]",
        "[8:dp.dp]",
        "[8:dp] sum(dp)",
        "[8] at",
        "[8] at ",
        "[8] at pp",
        "[8] at pp=",
        "[8] at pp=-1",
        "[8] at pp=1, ep=0",
        "[8] at pp=1.",
        "[8] at pp=1 sum(dp)",
        "[8] at pp=1.pp=0",
        "[8:pp] at pp=1",
        "[8] sum(pp) at pp=1",
    ],
)
def test_text_that_is_no_layout(text: str) -> None:
    with pytest.raises(LayoutError):
        Layout.parse(text)


def test_refuses_an_axis_used_twice() -> None:
    with pytest.raises(LayoutError, match=r'axis "dp" is used twice in \[8:dp, 4:dp\]'):
        Layout(((Factor(8, ("dp",)),), (Factor(4, ("dp",)),)))


def test_refuses_half_a_reduction() -> None:
    with pytest.raises(LayoutError, match="give both or neither"):
        Layout((), "sum")
    with pytest.raises(LayoutError, match="give both or neither"):
        Layout((), "", frozenset({"dp"}))
    with pytest.raises(LayoutError, match='no reduction "avg"'):
        Layout((), "avg", frozenset({"dp"}))


def test_refuses_a_home_that_is_none() -> None:
    with pytest.raises(LayoutError, match=r'axis "pp" is used twice in \[8:pp\] at pp=0'):
        Layout.parse("[8:pp]").pinned({"pp": 0})
    with pytest.raises(LayoutError, match="sorted by axis"):
        Layout((), at=(("pp", 1), ("ep", 0)))
    with pytest.raises(LayoutError, match="an index from 0"):
        Layout((), at=(("pp", -1),))
    with pytest.raises(LayoutError, match=r'index 2 of axis "dp", which has size 2'):
        Layout.parse("[8] at dp=2").canonical(MESH)
    with pytest.raises(LayoutError, match='axis "td", which the mesh lacks'):
        Layout.parse("[8] at td=0").canonical(MESH)


def test_canonical() -> None:
    mesh = Mesh(("dp", "tp", "one"), (2, 4, 1))

    def canonical(text: str) -> str:
        return str(Layout.parse(text).canonical(mesh))

    assert canonical("[(4:dp 3), 6:one]") == "[12:dp, 6]"
    assert canonical("[(2:dp 4:tp)]") == "[8:dp.tp]"
    assert canonical("[(4:dp 4:tp)]") == "[(4:dp 4:tp)]"
    assert canonical("[(3:dp 2)]") == "[(3:dp 2)]"  # halves of 3 pairs are no halves of 6
    assert canonical("[(1:tp 8:dp)]") == canonical("[(8:dp 1:tp)]")
    assert canonical("[0:dp, (0 3:tp)]") == "[0, 0]"
    assert canonical("[()]") == "[1]"
    assert canonical("[6] sum(one)") == "[6]"
    assert canonical("[(4:dp 3)] at one=0.tp=3") == "[12:dp] at tp=3"
    assert canonical("[6] at one=0") == "[6]"
    with pytest.raises(LayoutError, match='index 1 of axis "one"'):
        canonical("[6] at one=1")


def test_these_values_need_nothing_beyond_the_standard_library() -> None:
    folder = Path(samite.layout.__file__).parent
    files = [
        *folder.glob("*.py"),
        *(folder.parent / f"{name}.py" for name in ("placement", "mesh", "topology", "errors")),
    ]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= {"samite", *sys.stdlib_module_names}, file


def test_names_an_axis_that_the_mesh_lacks() -> None:
    with pytest.raises(LayoutError, match='axis "td", which the mesh lacks') as error:
        Layout.parse("[8:td]").canonical(MESH)
    assert "tp" in error.value.help


@given(st.data(), meshes(), shapes(dims=2, largest=8))
def test_canonical_is_the_same_map_and_its_own_canonical(
    data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]
) -> None:
    layout = data.draw(layouts(mesh, shape, kinds=("sum",), pins=True))
    same = layout.canonical(mesh)
    assert same.canonical(mesh) == same
    assert same.shape == layout.shape
    assert same.local_shape(mesh) == layout.local_shape(mesh)
    buffers = Simulator(mesh).scatter(numbers(shape), layout)
    assert (Simulator(mesh).gather(buffers, same) == numbers(shape)).all()


@pytest.mark.parametrize("kind", REDUCE)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int8", "uint8", "uint64", "bool"])
def test_identity_is_neutral(kind: str, dtype: str) -> None:
    info = {"f": np.finfo, "i": np.iinfo, "u": np.iinfo}.get(np.dtype(dtype).kind)
    values = [False, True] if info is None else [info(dtype).min, 0, 1, info(dtype).max]
    values += [-np.inf, np.inf] if dtype.startswith("float") else []
    x = np.array(values, dtype)
    assert (REDUCE[kind](x, np.array(identity(kind, dtype), dtype)) == x).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_identity_of_small_floats(dtype: str) -> None:
    info = torch.finfo(getattr(torch, dtype))
    assert identity("max", dtype) <= info.min
    assert identity("min", dtype) >= info.max
    as_stored = torch.tensor([identity("max", dtype), identity("min", dtype)]).to(getattr(torch, dtype)).float()
    assert as_stored.tolist() == [identity("max", dtype), identity("min", dtype)]


def test_identity_of_floats_is_the_table() -> None:
    assert {kind: identity(kind, "float32") for kind in IDENTITY} == IDENTITY
    assert set(IDENTITY) == set(REDUCE)


@pytest.mark.parametrize(
    "kind, dtype, what",
    [
        ("avg", "float32", 'no reduction "avg"'),
        ("sum", "float31", 'no dtype "float31"'),
        ("max", "complex64", "no order"),
    ],
)
def test_identity_refuses(kind: str, dtype: str, what: str) -> None:
    with pytest.raises(LayoutError, match=what):
        identity(kind, dtype)
