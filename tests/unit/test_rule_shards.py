"""What rules' functions may ask about shards, on every rank, against the plain definition of layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samite.ir.collectives import using
from samite.layout import Dim, Factor, canonical, places
from samite.mesh import Mesh
from samite.rules.binding import bind
from samite.rules.planning import OpPlan
from samite.rules.shards import Shards, along
from samite.testing.rulecheck.sample import one_op


class Place:
    """A rank's place, as an endpoint without peers."""

    def __init__(self, mesh: Mesh, rank: int) -> None:
        self.at = mesh.coordinates(rank)

    def axis_index(self, axes: Sequence[str]) -> int:
        (axis,) = axes
        return self.at[axis]


def shards(dim: Dim, mesh: Mapping[str, int]) -> Shards:
    """Of a cumsum over a dim that is laid out so."""
    size = 1
    for factor in dim:
        size *= factor.size
    bound = bind(one_op("aten.cumsum", (torch.zeros(size), 0), {}))
    return Shards(bound, OpPlan((), (), {"d": dim}), mesh)


@st.composite
def split_dims(draw: st.DrawFn) -> tuple[Dim, Mesh]:
    mesh = Mesh(("a", "b", "c"), (2, 3, 2))
    axes = draw(st.permutations(["a", "b", "c"]))
    cuts = sorted(draw(st.lists(st.integers(0, 3), min_size=2, max_size=2)))
    parts = (axes[: cuts[0]], axes[cuts[0] : cuts[1]])
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=2))
    return canonical([Factor(n, tuple(p)) for n, p in zip(sizes, parts, strict=False)], mesh), mesh


@settings(max_examples=150, deadline=None)
@given(split_dims())
def test_positions_and_validity(situation: tuple[Dim, Mesh]) -> None:
    dim, mesh = situation
    s = shards(dim, mesh)
    for rank in range(mesh.size):
        here, indices = places(dim, mesh, mesh.coordinates(rank))
        with using(Place(mesh, rank)):  # type: ignore[arg-type]
            valid, positions = s.valid("d"), s.positions("d")
        assert len(positions) == s.local_size("d")
        assert positions[here].tolist() == indices
        if valid is None:
            assert here == list(range(s.local_size("d")))
        else:
            assert valid.nonzero().flatten().tolist() == here


@settings(max_examples=150, deadline=None)
@given(split_dims())
def test_local_indices(situation: tuple[Dim, Mesh]) -> None:
    """Every index is where its element is, and nowhere else; an index of no element is nowhere."""
    dim, mesh = situation
    s = shards(dim, mesh)
    size = s.size("d")
    for rank in range(mesh.size):
        here, indices = places(dim, mesh, mesh.coordinates(rank))
        with using(Place(mesh, rank)):  # type: ignore[arg-type]
            position, mine = s.local_index("d", torch.arange(-2, size + 2))
        assert (torch.arange(-2, size + 2)[mine]).tolist() == sorted(indices)
        assert position[mine].tolist() == [here[indices.index(i)] for i in sorted(indices)]
        assert not position[~mine].any()


def test_axes_and_peers() -> None:
    mesh = Mesh(("a", "b"), (2, 3))
    s = shards((Factor(6, ("b", "a")),), mesh)
    assert s.axes("d") == ("b", "a")
    assert s.peers("d") == 6
    numbers: list[int] = []
    for rank in range(mesh.size):
        with using(Place(mesh, rank)):  # type: ignore[arg-type]
            numbers.append(int(s.index("d")))
            first = s.once(torch.ones(2), "d")
        assert bool(first.all()) == (rank == 0)
        assert bool(first.any()) == (rank == 0)
    assert numbers == [0, 2, 4, 1, 3, 5]
    whole = shards((Factor(6),), mesh)
    assert not whole.split("d")
    assert whole.all_gather(torch.ones(2), "d", 0).shape == (2,)
    assert torch.equal(whole.once(torch.ones(2), "d"), torch.ones(2))


def test_masks_of_runs() -> None:
    mesh = Mesh(("a",), (2,))
    bound = bind(one_op("aten.sum.dim_IntList", (torch.zeros(3, 4, 5), [2, 0]), {}))
    s = Shards(bound, OpPlan((), (), {"r1": (Factor(3, ("a",)),)}), mesh)
    with using(Place(mesh, 1)):  # type: ignore[arg-type]
        masked = s.mask(torch.ones(2, 4, 5), "r", [2, 0], -1.0)
    assert masked[0].eq(1).all()
    assert masked[1].eq(-1).all()


def test_along() -> None:
    assert along(torch.arange(3), -1, 3).shape == (1, 1, 3)
    assert along(torch.arange(3), 0, 2).shape == (3, 1)


def test_calls_hand_over_operands_as_the_rule_has_them() -> None:
    seen: dict[str, Any] = {}

    def function(s: Shards, *operands: Any, **literals: Any) -> None:
        seen.update(operands=operands, literals=literals)

    x, index = torch.zeros(7, 4), torch.zeros(5, dtype=torch.int64)
    bound = bind(one_op("aten.index.Tensor", (x, [None, index]), {}))
    Shards(bound, mock.Mock(), {"a": 2}).call(function, [x, index])
    assert seen["operands"] == (x, [index])
    assert seen["literals"] == {}
    bound = bind(one_op("aten.native_layer_norm", (x, [4], None, x[0], 1e-5), {}))
    Shards(bound, mock.Mock(), {"a": 2}).call(function, [x, x[0]])
    assert [o is None for o in seen["operands"]] == [False, True, False]
    assert seen["literals"] == {"normalized_shape": [4], "eps": 1e-5}


@pytest.mark.parametrize("name", ["aten.full", "samite.philox_uniform"])
def test_calls_without_operands(name: str) -> None:
    args: tuple[Any, ...] = ([7, 4], 1.0) if name == "aten.full" else (torch.tensor(3), 1, [7, 4])
    bound = bind(one_op(name, args, {}))
    s = Shards(bound, OpPlan((), (), {}), {"a": 2})
    assert [s.size(letter) for letter in s.letters("a")] == [7, 4]
