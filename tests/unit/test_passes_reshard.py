"""Reshards as IR: what `partition` puts in for any pair of layouts, run on all ranks by the interpreter."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layout_simulator import Simulator, layouts, meshes, numbers, shapes
from lockstep_graphs import run_graph
from samite.errors import VerifyError
from samite.layout import Layout, Plan, from_placements, plan
from samite.mesh import Mesh
from samite.passes.fragments import reshard_graph
from samite.passes.traffic import collectives
from samite.placement import Partial, Replicate, Shard

LINE, GRID = Mesh(("dp",), (2,)), Mesh(("dp", "tp"), (2, 3))


def check(src: Layout, dst: Layout, mesh: Mesh, dtype: str = "float64") -> None:
    """Buffers of `src`, with poisoned padding and unlike terms, become buffers of `dst` with the same value."""
    graph = reshard_graph(src, dst, dtype, tuple(mesh.items()))
    simulator = Simulator(mesh)
    value = numbers(src.shape, dtype)
    inputs = [[torch.from_numpy(buffer)] for buffer in simulator.scatter(value, src)]
    outputs = [results[0].numpy() for results in run_graph(graph, mesh, inputs)]
    assert (simulator.gather(outputs, dst) == value).all()
    # Constants of no dims are on the way of empty tensors, too.
    planned = max(plan(src, dst, mesh).peak(mesh), *(prod(layout.local_shape(mesh)) for layout in (src, dst)), 1)
    assert max(prod(type.shape) for type in graph.types) <= planned
    moved = sum(c.nbytes for c in collectives(graph, mesh))
    assert moved == plan(src, dst, mesh).elements * value.itemsize


def placed(shape: tuple[int, ...], mesh: Mesh, kind: str) -> list[Layout]:
    """All layouts that DTensor's words can say, of one reduction."""
    words = [Replicate(), Partial(kind), *(Shard(dim) for dim in range(len(shape)))]
    chosen = product(words, repeat=len(mesh))
    return [from_placements(shape, dict(zip(mesh, placements, strict=True)), mesh) for placements in chosen]


@pytest.mark.parametrize(
    "mesh, shape", [(LINE, (4, 6)), (LINE, (3, 1)), (GRID, (5, 4))], ids=["even", "uneven", "grid"]
)
def test_every_pair_of_placements(mesh: Mesh, shape: tuple[int, ...]) -> None:
    for src, dst in product(placed(shape, mesh, "sum"), repeat=2):
        check(src, dst, mesh)


@pytest.mark.parametrize("kind", ["max", "min", "prod"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_other_reductions(kind: str, dtype: str) -> None:
    for src, dst in product(placed((3, 4), LINE, kind), repeat=2):
        check(src, dst, LINE, dtype)


@settings(max_examples=100)
@given(st.data(), meshes(), shapes(3, 8))
def test_any_pair_of_layouts(data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]) -> None:
    """Several factors a dim, axes in any order, up to three axes, empty shards and empty tensors."""
    check(data.draw(layouts(mesh, shape)), data.draw(layouts(mesh, shape)), mesh)


def test_what_is_in_place_needs_no_op() -> None:
    layout = from_placements((5, 4), {"dp": Shard(0), "tp": Partial()}, GRID)
    assert not reshard_graph(layout, layout, "float32", tuple(GRID.items())).nodes


def test_ranks_of_a_bool_owe_no_sum() -> None:
    """An owed `any` is a max of bools."""
    mesh = tuple(LINE.items())
    whole, owed = Layout.replicated((4,)), Layout(Layout.replicated((4,)).dims, "max", frozenset({"dp"}))
    inputs = [[torch.tensor([True, False, False, True])], [torch.tensor([False, False, True, True])]]
    for (result,) in run_graph(reshard_graph(owed, whole, "bool", mesh), LINE, inputs):
        assert result.tolist() == [True, False, True, True]


def test_a_reshard_that_holds_more_than_its_plan_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    src, dst = Layout.parse("[3:dp, 1]"), Layout.parse("[3, 1:dp]")
    reshard_graph(src, dst, "float32", tuple(LINE.items()))
    reshard_graph.cache_clear()
    monkeypatch.setattr(Plan, "peak", lambda self, mesh: 0)
    with pytest.raises(VerifyError, match=r"a reshard of \[3:dp, 1\] to \[3, 1:dp\] holds 4 elements .*says 3"):
        reshard_graph(src, dst, "float32", tuple(LINE.items()))
