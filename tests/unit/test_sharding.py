"""Between global tensors and local buffers, over random meshes and layouts."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samite.errors import InputError, VerifyError
from samite.layout import Factor, Layout, identity, places
from samite.mesh import Mesh
from samite.runtime.sharding import assemble, fill, home_ranks, lay, poison

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    return Mesh(("a", "b", "c")[: len(shape)], tuple(shape))


@st.composite
def layouts(draw: st.DrawFn, mesh: Mesh) -> Layout:
    """Up to three dims of up to two factors; each axis cuts a factor, owes, pins, or does none of this."""
    sizes = draw(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=2), max_size=3))
    spots = [(d, f) for d, dim in enumerate(sizes) for f in range(len(dim))]
    axes: dict[tuple[int, int], list[str]] = {spot: [] for spot in spots}
    owed, at = set(), {}
    for axis in draw(st.permutations(mesh.axes)):
        where = draw(st.sampled_from(["nowhere", "owed", "at", *spots]))
        if where == "owed":
            owed.add(axis)
        elif where == "at":
            at[axis] = draw(st.integers(0, mesh[axis] - 1))
        elif where != "nowhere":
            axes[where].append(axis)
    kind = draw(st.sampled_from(["sum", "max", "min", "prod"])) if owed else ""
    dims = tuple(tuple(Factor(size, tuple(axes[d, f])) for f, size in enumerate(dim)) for d, dim in enumerate(sizes))
    return Layout(dims, kind, frozenset(owed)).pinned(at)


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(prod(shape)).reshape(shape) % 101 + 1).to(dtype)


@given(st.data())
def test_what_is_laid_out_is_assembled(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    layout = data.draw(layouts(mesh))
    value = values(layout.shape, data.draw(st.sampled_from(DTYPES)))
    locals = [lay(value, layout, mesh, rank, poisoned=True) for rank in range(mesh.size)]
    for rank, local in enumerate(locals):
        held = layout.held_by(mesh.coordinates(rank))
        assert tuple(local.shape) == (layout.local_shape(mesh) if held else (0,))
        assert local.is_contiguous()
        assert local.dtype == value.dtype
    whole = assemble(locals, layout, mesh, check=True)
    assert whole.dtype == value.dtype
    assert torch.equal(whole, value)


@given(st.data())
def test_a_buffer_is_what_the_index_map_says(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    layout = data.draw(layouts(mesh))
    value = values(layout.shape, torch.int64)
    for rank in home_ranks(layout, mesh) or range(mesh.size):
        at = mesh.coordinates(rank)
        holds_value = layout.kind not in ("sum", "prod") or all(at[axis] == 0 for axis in layout.owed)
        expected = torch.full(layout.local_shape(mesh), poison(torch.int64))
        for spot in product(*(zip(*places(dim, mesh, at), strict=True) for dim in layout.dims)):
            here, there = tuple(p for p, _ in spot), tuple(i for _, i in spot)
            expected[here] = value[there] if holds_value else identity(layout.kind, "int64")
        assert torch.equal(lay(value, layout, mesh, rank, poisoned=True), expected)


@given(st.data())
def test_owed_reductions_are_carried_out(data: st.DataObject) -> None:
    mesh = Mesh(("a", "b"), (data.draw(st.integers(1, 3)), 2))
    kind, reduce = data.draw(
        st.sampled_from([("sum", torch.sum), ("max", torch.amax), ("min", torch.amin), ("prod", torch.prod)])
    )
    layout = Layout(((Factor(5, ("b",)),),), kind, frozenset({"a"}))
    parts = torch.randint(-3, 4, (mesh["a"], 5))
    cut = Layout(((Factor(5, ("b",)),),))
    locals = [lay(parts[mesh.coordinates(rank)["a"]], cut, mesh, rank, poisoned=True) for rank in range(mesh.size)]
    assert torch.equal(assemble(locals, layout, mesh), reduce(parts, dim=0))


def test_padding_is_zero_unless_poisoned() -> None:
    mesh, layout = Mesh(("a",), (2,)), Layout(((Factor(3, ("a",)),),))
    assert lay(torch.ones(3), layout, mesh, 1).tolist() == [1.0, 0.0]
    assert lay(torch.ones(3), layout, mesh, 1, poisoned=True)[1].isnan()
    assert lay(torch.ones(3, dtype=torch.int64), layout, mesh, 1, poisoned=True)[1] > 10**6


def test_fill_overwrites_what_was_there() -> None:
    mesh, layout = Mesh(("a",), (2,)), Layout(((Factor(3, ("a",)),),))
    buffer = torch.full((2,), 7.0)
    fill(buffer, torch.tensor([1.0, 2.0, 3.0]), layout, mesh, 1)
    assert buffer.tolist() == [3.0, 0.0]


def test_strided_values_are_laid_out() -> None:
    mesh, layout = Mesh(("a",), (2,)), Layout(((Factor(2), Factor(3, ("a",))), (Factor(4),)))
    value = torch.arange(24.0).reshape(4, 6).T
    locals = [lay(value, layout, mesh, rank) for rank in range(2)]
    assert torch.equal(assemble(locals, layout, mesh), value)


def test_an_even_leading_shard_copies_nothing() -> None:
    value = torch.arange(8.0).reshape(4, 2)
    local = lay(value, Layout(((Factor(4, ("a",)),), (Factor(2),))), Mesh(("a",), (2,)), 1)
    assert local.data_ptr() == value[2:].data_ptr()


def test_assembled_memory_is_its_own() -> None:
    value = torch.zeros(4)
    whole = assemble([value], Layout.replicated((4,)), Mesh(("a",), (1,)))
    whole += 1
    assert not value.any()


def test_replicas_that_differ_are_named() -> None:
    mesh, layout = Mesh(("a", "b"), (2, 2)), Layout(((Factor(4, ("a",)),),))
    locals = [torch.zeros(2), torch.zeros(2), torch.zeros(2), torch.tensor([0.0, 0.5])]
    assert torch.equal(assemble(locals, layout, mesh), torch.zeros(4))
    with pytest.raises(VerifyError, match=r"ranks 2 and 3, by 0\.5"):
        assemble(locals, layout, mesh, check=True)


def test_padding_of_replicas_may_differ() -> None:
    mesh, layout = Mesh(("a", "b"), (2, 2)), Layout(((Factor(3, ("a",)),),))
    locals = [torch.zeros(2), torch.zeros(2), torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0])]
    assert torch.equal(assemble(locals, layout, mesh, check=True), torch.zeros(3))


def test_a_wrong_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"\(3, 2\)"):
        lay(torch.zeros(3, 2), Layout.replicated((2, 3)), Mesh(("a",), (1,)), 0)


def test_the_home_of_a_pinned_value() -> None:
    mesh, layout = Mesh(("a", "pp", "b"), (2, 2, 2)), Layout.parse("[3:a] at pp=1")
    assert home_ranks(layout, mesh) == (2, 3, 6, 7)
    assert home_ranks(layout.pinned({"pp": 0, "b": 1}), mesh) == (1, 5)
    assert home_ranks(layout.unpinned(), mesh) == ()


def test_ranks_that_hold_nothing_are_not_looked_at() -> None:
    mesh, layout = Mesh(("a", "pp"), (2, 2)), Layout.parse("[4] at pp=1")
    value, poisoned = torch.arange(4.0), torch.full((4,), float("nan"))
    assert torch.equal(assemble([poisoned, value, poisoned, value], layout, mesh, check=True), value)
    buffer = poisoned.clone()
    fill(buffer, value, layout, mesh, 2)
    assert buffer.isnan().all()
    with pytest.raises(VerifyError, match="ranks 1 and 3"):
        assemble([value, value, value, value + 1], layout, mesh, check=True)
    with pytest.raises(InputError, match=r"\(3,\)"):
        lay(torch.zeros(3), layout, mesh, 0)
