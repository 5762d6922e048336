"""Views: the reshape of the local buffers is the reshape of the whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samite.errors import LayoutError
from samite.layout import Layout, axes_of, regroup, without
from samite.mesh import Mesh

from .layout_simulator import Simulator, layouts, meshes, numbers, shapes

MESH = Mesh(("dp", "tp"), (2, 4))


def view(text: str, sizes: tuple[int, ...], mesh: Mesh = MESH) -> tuple[str, str]:
    need, out = regroup(Layout.parse(text).dims, sizes, mesh)
    return str(Layout(need)), str(Layout(out))


@pytest.mark.parametrize(
    "text, sizes, result",
    [
        ("[8:dp, 16, 32]", (128, 32), "[128:dp, 32]"),  # batch and time flattened, batch split
        ("[8, 16:tp, 32]", (128, 32), "[(8 16:tp), 32]"),  # time split: exact, and not one block a rank
        ("[(8 16:tp), 32]", (8, 16, 32), "[8, 16:tp, 32]"),  # and back
        ("[128:dp, 32]", (8, 16, 32), "[8:dp, 16, 32]"),
        ("[8, 48:tp]", (8, 12, 4), "[8, 12:tp, 4]"),  # heads
        ("[48:dp.tp]", (8, 6), "[8:dp.tp, 6]"),
        ("[1, 8:dp]", (8, 1), "[8:dp, 1]"),
        ("[8:dp]", (1, 8, 1, 1), "[1, 8:dp, 1, 1]"),
        ("[1]", (), "[]"),
        ("[]", (1, 1), "[1, 1]"),
        ("[1:tp, 8]", (8,), "[(1:tp 8)]"),  # index 0 owns all 8
        ("[8:dp, 1:tp]", (8,), "[(8:dp 1:tp)]"),
        ("[8:dp, 0]", (0, 5), "[0, 5]"),
        ("[8:dp, 0]", (8, 0), "[8:dp, 0]"),
    ],
)
def test_views_without_communication(text: str, sizes: tuple[int, ...], result: str) -> None:
    assert view(text, sizes) == (text, result)


@pytest.mark.parametrize(
    "text, sizes, need, result",
    [
        ("[6:tp]", (2, 3), "[6]", "[2, 3]"),  # chunks of 2 cut rows of 3
        ("[12:dp.tp]", (4, 3), "[12:dp]", "[4:dp, 3]"),  # only the innermost is in the way
        ("[4:tp, 9:dp]", (4, 3, 3), "[4:tp, 9]", "[4:tp, 3, 3]"),
        ("[1:tp]", (), "[1]", "[]"),  # no dim is left that index 0 could own
    ],
)
def test_views_gather_the_axes_in_the_way(text: str, sizes: tuple[int, ...], need: str, result: str) -> None:
    assert view(text, sizes) == (need, result)


@settings(max_examples=400)
@given(st.data(), meshes(), shapes(largest=8))
def test_a_view_of_the_buffers_is_the_view_of_the_whole(
    data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]
) -> None:
    layout = data.draw(layouts(mesh, shape, kinds=("sum",)))
    x = numbers(shape)
    sizes = data.draw(other_shapes(x.size))
    need, out = regroup(layout.dims, sizes, mesh)
    needed, result = Layout(need, layout.kind, layout.owed), Layout(out, layout.kind, layout.owed)
    assert result.shape == sizes
    gone = set(layout.axes) - set(needed.axes)
    assert need == without(layout.dims, gone)
    buffers = [b.reshape(result.local_shape(mesh)) for b in Simulator(mesh).scatter(x, needed)]
    assert (Simulator(mesh).gather(buffers, result) == x.reshape(sizes)).all()


@given(st.data(), meshes(), shapes(largest=8))
def test_a_view_to_the_same_shape_needs_nothing(data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]) -> None:
    layout = data.draw(layouts(mesh, shape, kinds=()))
    assert regroup(layout.dims, shape, mesh) == (layout.dims, layout.dims)


@given(meshes(), st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_flattening_the_outermost_of_even_dims_and_back_needs_nothing(mesh: Mesh, k: int, n: int, m: int) -> None:
    axis = mesh.axes[0]
    dims = Layout.parse(f"[{k * mesh[axis]}:{axis}, {n}, {m}]").dims
    need, flat = regroup(dims, (k * mesh[axis] * n * m,), mesh)
    again, back = regroup(flat, (k * mesh[axis], n, m), mesh)
    assert (need, again) == (dims, flat)
    assert Layout(back).canonical(mesh) == Layout(dims).canonical(mesh)
    assert axes_of(flat[0]) == ([axis] if mesh[axis] > 1 else [])


@pytest.mark.parametrize("sizes", [(5, 5), (-1, 24), (25,), (), (0, 24)])
def test_refuses_other_element_counts(sizes: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError, match="cannot view shape"):
        regroup(Layout.parse("[4:dp, 6]").dims, sizes, MESH)


def test_names_an_axis_that_the_mesh_lacks() -> None:
    with pytest.raises(LayoutError, match='axis "ep"'):
        regroup(Layout.parse("[4:ep, 6]").dims, (24,), MESH)


@st.composite
def other_shapes(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Shapes of up to four dims with so many elements."""
    out: list[int] = []
    for _ in range(draw(st.integers(0, 3))):
        out.append(draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0] or [1, 2, 3])))
        size //= out[-1]
    return (*out, size) if size != 1 or draw(st.booleans()) else tuple(out)
