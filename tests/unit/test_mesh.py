from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samite.errors import MeshError
from samite.mesh import Mesh

from .layout_simulator import meshes

MESH = Mesh(("dp", "pp", "tp"), (2, 3, 4))


def test_is_a_mapping_in_mesh_order() -> None:
    assert list(MESH) == ["dp", "pp", "tp"]
    assert dict(MESH) == {"dp": 2, "pp": 3, "tp": 4}
    assert MESH["pp"] == 3
    assert "tp" in MESH
    assert "ep" not in MESH
    assert MESH.get("ep") is None


def test_prints_its_backends_and_axes() -> None:
    assert str(Mesh(("dp", "tp"), (2, 2))) == "cpu dp=2 tp=2"
    assert str(Mesh(("tp",), (2,), backends=("gpu_triton", "cpu"))) == "gpu_triton,cpu tp=2"


def test_is_a_key() -> None:
    same = Mesh(("dp", "pp", "tp"), (2, 3, 4))
    assert same["dp"] == 2  # what is cached is no part of the value
    assert same == MESH
    assert hash(same) == hash(MESH)
    assert Mesh(("tp", "dp"), (2, 2)) != Mesh(("dp", "tp"), (2, 2))
    assert pickle.loads(pickle.dumps(MESH)) == MESH


def test_without_axes_is_one_rank() -> None:
    mesh = Mesh((), ())
    assert mesh.size == 1
    assert mesh.coordinates(0) == {}
    assert mesh.groups(()) == ((0,),)


def test_ranks_are_row_major() -> None:
    assert MESH.coordinates(0) == {"dp": 0, "pp": 0, "tp": 0}
    assert MESH.coordinates(1) == {"dp": 0, "pp": 0, "tp": 1}
    assert MESH.coordinates(12) == {"dp": 1, "pp": 0, "tp": 0}
    assert MESH.rank({"tp": 3, "pp": 2, "dp": 1}) == MESH.size - 1


def test_peers_are_ordered_by_the_axes_as_given() -> None:
    mesh = Mesh(("dp", "tp"), (2, 3))
    assert mesh.peers(4, ("tp",)) == (3, 4, 5)
    assert mesh.peers(4, ("dp",)) == (1, 4)
    assert mesh.peers(4, ("dp", "tp")) == (0, 1, 2, 3, 4, 5)
    assert mesh.peers(4, ("tp", "dp")) == (0, 3, 1, 4, 2, 5)
    assert mesh.peers(4, ()) == (4,)
    assert mesh.groups(("dp",)) == ((0, 3), (1, 4), (2, 5))


@given(st.data(), meshes(ranks=24))
def test_coordinates_and_groups(data: st.DataObject, mesh: Mesh) -> None:
    assert [mesh.rank(mesh.coordinates(rank)) for rank in range(mesh.size)] == list(range(mesh.size))
    axes = data.draw(st.permutations(mesh.axes))[: data.draw(st.integers(0, len(mesh)))]
    groups = mesh.groups(axes)
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
    for group in groups:
        assert all(mesh.peers(rank, axes) == group for rank in group)


@pytest.mark.parametrize(
    "axes, shape, what",
    [
        (("dp", "dp"), (2, 2), '"dp" is named twice'),
        (("dp",), (0,), "size 0"),
        (("dp",), (-2,), "size -2"),
        (("dp",), (True,), "size True"),
        (("dp",), (2.0,), "size 2.0"),
        (("d p",), (2,), '"d p" is not a name'),
        (("",), (2,), '"" is not a name'),
        (("dp",), (2, 2), "1 axes and 2 sizes"),
    ],
)
def test_refuses(axes: tuple[str, ...], shape: tuple[int, ...], what: str) -> None:
    with pytest.raises(MeshError, match=what):
        Mesh(axes, shape)


def test_names_the_nearest_axis() -> None:
    with pytest.raises(MeshError, match='no axis "tpp"') as error:
        MESH["tpp"]
    assert 'did you mean "tp"' in error.value.help
    with pytest.raises(MeshError, match='no axis "ep"'):
        MESH.peers(0, ("ep",))
    with pytest.raises(MeshError, match="named twice"):
        MESH.peers(0, ("tp", "tp"))


@pytest.mark.parametrize("rank", [-1, 24])
def test_refuses_a_rank_off_the_mesh(rank: int) -> None:
    with pytest.raises(MeshError, match=f"no rank {rank}"):
        MESH.coordinates(rank)


@pytest.mark.parametrize(
    "at, what",
    [
        ({"dp": 0, "pp": 0}, 'no index on axis "tp"'),
        ({"dp": 0, "pp": 3, "tp": 0}, 'index 3 on axis "pp"'),
        ({"dp": -1, "pp": 0, "tp": 0}, 'index -1 on axis "dp"'),
        ({"dp": 0, "pp": 0, "tp": 0, "ep": 0}, 'no axis "ep"'),
    ],
)
def test_refuses_coordinates_off_the_mesh(at: dict[str, int], what: str) -> None:
    with pytest.raises(MeshError, match=what):
        MESH.rank(at)
