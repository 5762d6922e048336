"""The algebra of one dim: chunks tile it, merge and split are inverse, canonical forms are index maps."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samite.layout import Dim, Factor, axes_of, canonical, merge, places, split, without
from samite.mesh import Mesh

from .layout_simulator import every_factorization, layouts, meshes

AXES = ("a", "b", "c")
MESHES = [Mesh(AXES[: len(s)], s) for s in [(2,), (3,), (2, 2), (2, 3), (3, 2), (4, 2), (1, 3), (2, 2, 2), (2, 3, 2)]]


def index_map(dim: Dim, mesh: Mesh) -> tuple[object, ...]:
    """All that a dim means: its buffer's length and what is where on every rank."""
    local = 1
    for f in dim:
        local *= f.local(mesh)
    held = [sorted(zip(*places(dim, mesh, mesh.coordinates(rank)), strict=True)) for rank in range(mesh.size)]
    return local, tuple(map(tuple, held))


def every_dim(size: int, mesh: Mesh) -> list[Dim]:
    """All dims of a size: every factorization, every ordered choice of axes on every factor."""
    dims: list[Dim] = []
    for sizes in every_factorization(size):
        for n in range(len(mesh) + 1):
            for axes in permutations(mesh.axes, n):
                for slots in product(range(len(sizes)), repeat=n):
                    placed = [
                        tuple(a for a, slot in zip(axes, slots, strict=True) if slot == k) for k in range(len(sizes))
                    ]
                    dims.append(tuple(map(Factor, sizes, placed)))
    return dims


def test_chunks_and_spans() -> None:
    mesh = Mesh(("a", "b"), (2, 2))
    f = Factor(3, ("a", "b"))
    assert f.chunks(mesh) == [3, 2, 1]
    assert f.local(mesh) == 1
    assert f.padded(mesh)
    # 3 over 2 is 2 + 1, each over 2 again: the second half of the second chunk is empty, though 3 elements fit in 4.
    assert [f.span(mesh, mesh.coordinates(rank)) for rank in range(4)] == [(0, 1), (1, 1), (2, 1), (3, 0)]
    # 5 over 2 is 3 + 2, each over 2 as 2 + 2: the hole is in the interior, and its chunk starts where the next does.
    five = Factor(5, ("a", "b"))
    assert [five.span(mesh, mesh.coordinates(rank)) for rank in range(4)] == [(0, 2), (2, 1), (3, 2), (5, 0)]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_split_tiles_the_dim_once(mesh: Mesh) -> None:
    for n in range(len(mesh) + 1):
        for axes in permutations(mesh.axes, n):
            for size in range(14):
                f = Factor(size, axes)
                held: list[int] = []
                for rank, at in enumerate(map(mesh.coordinates, range(mesh.size))):
                    if rank == mesh.rank({**dict.fromkeys(mesh, 0), **{a: at[a] for a in axes}}):  # one of its replicas
                        first, valid = f.span(mesh, at)
                        assert 0 <= valid <= f.local(mesh)
                        held += range(first, first + valid)
                assert sorted(held) == list(range(size))
                assert f.padded(mesh) == (f.local(mesh) * len(mesh.peers(0, axes)) != size)


@given(st.data(), meshes(), st.integers(0, 24))
def test_places_tile_a_dim_of_factors_once(data: st.DataObject, mesh: Mesh, size: int) -> None:
    (dim,) = data.draw(layouts(mesh, (size,), kinds=())).dims
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(mesh.size):
        at = mesh.coordinates(rank)
        positions, indices = places(dim, mesh, at)
        assert positions == sorted(set(positions))
        assert len(positions) == len(indices)
        assert groups.setdefault(tuple(at[a] for a in axes_of(dim)), indices) == indices, "replicas differ"
    assert sorted(index for indices in groups.values() for index in indices) == list(range(size))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_merge_keeps_the_map_and_split_is_its_inverse(mesh: Mesh) -> None:
    merges = 0
    for size in (1, 2, 3, 4, 6, 8):
        for dim in every_dim(size, mesh):
            if len(dim) != 2 or not (one := merge(*dim, mesh)):
                continue
            merges += 1
            assert index_map((one,), mesh) == index_map(dim, mesh)
            parts = split(one, dim[0].size, mesh)
            assert parts
            assert merge(*parts, mesh) == one
            assert index_map(parts, mesh) == index_map(dim, mesh)
    assert merges > 10


@pytest.mark.parametrize("mesh", MESHES[:-1], ids=str)
def test_canonical_forms_are_equal_if_and_only_if_index_maps_are(mesh: Mesh) -> None:
    sizes = (1, 2, 3, 4, 5, 6, 8) if len(mesh) < 3 else (1, 2, 4)
    for size in sizes:
        form_of: dict[object, Dim] = {}
        map_of: dict[Dim, object] = {}
        for dim in every_dim(size, mesh):
            form, meaning = canonical(dim, mesh), index_map(dim, mesh)
            assert form_of.setdefault(meaning, form) == form, f"{dim}: one map, two forms"
            assert map_of.setdefault(form, meaning) == meaning, f"{dim}: one form, two maps"
            assert index_map(form, mesh) == meaning


def test_split_refuses_what_does_not_divide() -> None:
    mesh = Mesh(("a",), (2,))
    assert split(Factor(6), 4, mesh) is None
    assert split(Factor(6), 0, mesh) is None
    assert split(Factor(6, ("a",)), 3, mesh) is None  # halves of 6 cut the second of three pairs
    assert split(Factor(6, ("a",)), 2, mesh) == (Factor(2, ("a",)), Factor(3))


def test_without_gathers_axes_anywhere() -> None:
    dims = ((Factor(4, ("a", "b")), Factor(2)), (Factor(3, ("c",)),))
    assert without(dims, ("a", "c")) == ((Factor(4, ("b",)), Factor(2)), (Factor(3),))
    assert axes_of(dims[0]) == ["a", "b"]
