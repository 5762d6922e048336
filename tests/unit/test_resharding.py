"""Plans: right values from poisoned buffers, by exactly the traffic they declare."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samite.errors import LayoutError
from samite.layout import Layout, bytes_moved, from_placements, plan
from samite.mesh import Mesh
from samite.placement import Partial, Replicate, Shard

from .layout_simulator import Simulator, layouts, meshes, numbers, shapes

LINE, GRID, CUBE = Mesh(("a",), (3,)), Mesh(("a", "b"), (2, 3)), Mesh(("a", "b", "c"), (2, 2, 2))


def check(src: Layout, dst: Layout, mesh: Mesh, dtype: str = "float64") -> None:
    simulator, x = Simulator(mesh), numbers(src.shape, dtype)
    way = plan(src, dst, mesh)
    buffers = simulator.run(way, simulator.scatter(x, src), dst)
    assert (simulator.gather(buffers, dst) == x).all()
    assert simulator.moved == way.elements
    assert simulator.peak == way.peak(mesh)


@pytest.mark.parametrize("mesh, shape", [(LINE, (6,)), (LINE, (4,)), (GRID, (6, 6)), (GRID, (5, 4)), (GRID, (1, 7))])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_every_pair_of_placements(mesh: Mesh, shape: tuple[int, ...], kind: str) -> None:
    words = [Replicate(), Partial(kind), *map(Shard, range(len(shape)))]
    placed = [
        from_placements(shape, dict(zip(mesh, some, strict=True)), mesh) for some in product(words, repeat=len(mesh))
    ]
    for src, dst in product(placed, repeat=2):
        check(src, dst, mesh)


@settings(max_examples=2000)
@given(st.data(), st.sampled_from([(4, 4), (8, 2), (5, 3), (3, 3, 2)]))
def test_pairs_of_placements_on_three_axes(data: st.DataObject, shape: tuple[int, ...]) -> None:
    words = st.sampled_from([Replicate(), Partial(), *map(Shard, range(len(shape)))])
    src, dst = (from_placements(shape, {axis: data.draw(words) for axis in CUBE}, CUBE) for _ in range(2))
    check(src, dst, CUBE)


@settings(max_examples=200)
@given(st.data(), meshes(), shapes(), st.sampled_from(["float64", "int64"]))
def test_any_pair_of_layouts(data: st.DataObject, mesh: Mesh, shape: tuple[int, ...], dtype: str) -> None:
    check(data.draw(layouts(mesh, shape)), data.draw(layouts(mesh, shape)), mesh, dtype)


@given(st.data(), meshes(), shapes())
def test_equal_maps_need_no_step(data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]) -> None:
    layout = data.draw(layouts(mesh, shape))
    assert plan(layout, layout.canonical(mesh), mesh).steps == ()
    assert plan(layout.canonical(mesh), layout, mesh).elements == 0


def verbs(src: str, dst: str, mesh: Mesh = GRID) -> list[str]:
    steps = plan(Layout.parse(src), Layout.parse(dst), mesh).steps
    return [f"{step.verb} {step.axis}" for step in steps]


@pytest.mark.parametrize(
    "src, dst, steps, elements",
    [
        ("[12]", "[12:a]", ["shard a"], 0),
        ("[12]", "[12] max(a)", ["owe a"], 0),
        ("[12:a]", "[12]", ["all_gather a"], 6),
        ("[12] sum(b)", "[12]", ["all_reduce b"], 2 * 2 * 4),
        ("[12] sum(b)", "[12:b]", ["reduce_scatter b"], 2 * 4),
        ("[12, 6:b]", "[12:b, 6]", ["all_to_all b"], 2 * 8),
        ("[12] sum(a)", "[12:b]", ["shard b", "all_reduce a"], 2 * 2),  # slice first: a third is reduced
        ("[12:b] sum(a)", "[12]", ["all_reduce a", "all_gather b"], 2 * 2 + 2 * 4),  # reduce first
        ("[12] sum(a)", "[12] max(a)", ["all_reduce a", "owe a"], 2 * 6),
        ("[12] sum(a)", "[12] sum(b)", ["owe b", "all_reduce a"], 2 * 6),
        ("[12:a.b]", "[12:a]", ["all_gather b"], 2 * 2),
        ("[12:a.b]", "[12:b]", ["all_gather b", "all_gather a", "shard b"], 2 * 2 + 6),
        ("[(2 6:b)]", "[12:b]", ["all_gather b", "shard b"], 2 * 4),  # rows of 6 in thirds; thirds of 12
        ("[(4:a 3)]", "[12:a]", [], 0),
    ],
)
def test_known_plans(src: str, dst: str, steps: list[str], elements: int) -> None:
    way = plan(Layout.parse(src), Layout.parse(dst), GRID)
    assert sorted(verbs(src, dst)) == sorted(steps)
    assert way.elements == elements


def test_data_parallel_gradients_are_reduced_where_they_stay() -> None:
    assert verbs("[8, 6] sum(a)", "[8:a, 6]") == ["reduce_scatter a"]
    assert verbs("[8, 6:b] sum(a)", "[8:a, 6:b]") == ["reduce_scatter a"]
    assert verbs("[8, 6:b] sum(a)", "[8, 6:b.a]") == ["reduce_scatter a"]


@settings(max_examples=2000)
@given(st.data(), meshes(), shapes())
def test_no_dearer_than_through_the_whole(data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]) -> None:
    src, dst = data.draw(layouts(mesh, shape)), data.draw(layouts(mesh, shape))
    assert plan(src, dst, mesh).elements <= plan(src, Layout.replicated(shape), mesh).elements
    assert plan(Layout.replicated(shape), dst, mesh).elements == 0


@given(st.data(), meshes(), shapes(), st.sampled_from([1, 2, 4, 8]))
def test_bytes_moved(data: st.DataObject, mesh: Mesh, shape: tuple[int, ...], itemsize: int) -> None:
    src, dst = data.draw(layouts(mesh, shape)), data.draw(layouts(mesh, shape))
    assert bytes_moved(src, dst, mesh, itemsize) == itemsize * plan(src, dst, mesh).elements
    assert bytes_moved(src, src, mesh, itemsize) == 0


def test_plans_take_any_mapping_and_are_cached() -> None:
    src, dst = Layout.parse("[12:a]"), Layout.parse("[12]")
    assert plan(src, dst, {"a": 2, "b": 3}) is plan(src, dst, GRID)


def test_steps_name_their_slots() -> None:
    (step,) = plan(Layout.parse("[(3 16:a), 5]"), Layout.parse("[48, 5:a]"), GRID).steps
    assert (step.verb, step.source, step.target) == ("all_to_all", 1, 2)
    assert step.slots(GRID) == (3, 8, 5)
    assert step.chunk(GRID) == 3
    assert step.gathered(GRID) == 16
    assert step.kind == ""


def test_refuses_other_shapes() -> None:
    with pytest.raises(LayoutError, match="shapes differ"):
        plan(Layout.parse("[12]"), Layout.parse("[6, 2]"), GRID)


@given(st.data(), meshes(), shapes())
def test_within_a_home_it_is_the_plan_of_a_smaller_mesh(
    data: st.DataObject, mesh: Mesh, shape: tuple[int, ...]
) -> None:
    src, dst = data.draw(layouts(mesh, shape, kinds=("sum",))), data.draw(layouts(mesh, shape, kinds=("sum",)))
    home = {"pp": data.draw(st.integers(0, 2)), "one": 0}
    wide = {"pp": 3, **mesh, "one": 1}
    assert plan(src.pinned(home), dst.pinned({"pp": home["pp"]}), wide) == plan(src, dst, mesh)


@pytest.mark.parametrize("src, dst", [("[6] at a=0", "[6] at a=1"), ("[6] at a=0", "[6]"), ("[6:a]", "[6] at a=0")])
def test_refuses_to_move_a_value_to_another_home(src: str, dst: str) -> None:
    with pytest.raises(LayoutError, match="a reshard moves within the ranks that hold a value"):
        plan(Layout.parse(src), Layout.parse(dst), GRID)


def test_names_an_axis_that_the_mesh_lacks() -> None:
    with pytest.raises(LayoutError, match='axis "tp"'):
        plan(Layout.parse("[12]"), Layout.parse("[12:tp]"), GRID)
