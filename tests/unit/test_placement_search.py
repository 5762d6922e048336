"""The search for a placement against all placements there are, on functions small enough to try them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from programs import traced
from samite.ir.graph import Graph, Op
from samite.ir.importer import import_graph
from samite.layout import Factor, Layout
from samite.mesh import Mesh
from samite.passes.placement import Assignment, best_placement
from samite.passes.placement.costs import Costs
from samite.passes.placement.integer import search
from samite.passes.placement.integer.classes import alike
from samite.passes.placement.memory import held, peak
from samite.passes.placement.plans import interned
from samite.rules.binding import bind
from samite.rules.planning import OpPlan, plan_between
from samite.rules.strategies import placings, strategies
from samite.topology import DeviceSpec, Link, Topology

ONE, TWO = Mesh(("a",), (2,)), Mesh(("a", "b"), (2, 2))


def graph_of(function: Callable[..., Any], *shapes: tuple[int, ...], mesh: Mesh = ONE) -> Graph:
    return import_graph(traced(function, *(torch.empty(shape) for shape in shapes)).graph, mesh=mesh).graph


def start_of(graph: Graph, mesh: Mesh, topology: Topology) -> Assignment:
    """Nothing split."""
    placed = best_placement(graph, dict(mesh), [None] * len(graph.arguments), None)
    plans = [choice.plan for choice in placed.choices]
    everything = range(len(graph.arguments))
    return Assignment(graph, placed.layouts[: len(graph.arguments)], plans, Costs(mesh, topology), inputs=everything)


def all_plans(op: Op, mesh: Mesh) -> list[OpPlan]:
    """With every axis on everything, whatever the neighbours offer."""
    bound = bind(op)
    nothing = [Layout.replicated(t.shape).canonical(mesh) for t in op.operands]
    unsplit = plan_between(bound, nothing, [Layout.replicated(t.shape).canonical(mesh) for t in op.results], mesh)
    assert unsplit is not None
    found = [unsplit]
    for axis in mesh:
        offered = [()] * (len(op.operands) + len(op.results))
        found = [more for base in found for more in strategies(bound, base, axis, mesh, offered)]
    return [OpPlan(tuple(map(interned, p.needs)), tuple(map(interned, p.results)), p.given, p.masks) for p in found]


def all_layouts(shape: tuple[int, ...], mesh: Mesh) -> list[Layout]:
    found = [Layout.replicated(shape)]
    for axis in mesh:
        found += [
            Layout((*layout.dims[:i], d, *layout.dims[i + 1 :]))
            for layout in found
            for i, dim in enumerate(layout.dims)
            for d in placings(dim, axis, mesh)
        ]
    return [interned(layout.canonical(mesh)) for layout in found]


def least_of_all(start: Assignment, mesh: Mesh) -> float:
    """Seconds of the best of all placements. Arguments do not depend on each other, so each takes its own best."""
    graph, costs = start.graph, start.costs
    least = start.seconds
    choices = [all_layouts(a.type.shape, mesh) for a in graph.arguments]
    for plans in product(*(all_plans(node.op, mesh) for node in graph.nodes)):
        arguments = list(start.arguments)
        for i, layouts in enumerate(choices):
            users = [(n, p) for n, p in zip(graph.nodes, plans, strict=True) if i in n.operands]
            needed = {need for n, p in users for o, need in zip(n.operands, p.needs, strict=True) if o == i}
            tried = [arguments[:i] + [layout] + arguments[i + 1 :] for layout in {layouts[0], *needed & set(layouts)}]
            made = [Assignment(graph, each, plans, costs, inputs=start.inputs) for each in tried]
            arguments = min(made, key=lambda each: each.seconds).arguments
        least = min(least, Assignment(graph, arguments, plans, costs, inputs=start.inputs).seconds)
    return least


def _chain(steps: Sequence[str]) -> Callable[..., Any]:
    """Each step takes what the one before it gives, and perhaps the next argument or the first value."""

    def run(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        first, rest = x, iter(others)
        for step in steps:
            match step:
                case "mm":
                    x = x @ next(rest)
                case "relu":
                    x = x.relu()
                case "rows":
                    x = torch.softmax(x, 1)
                case "turn":
                    x = x.t()
                case _:
                    x = x + (first if first.shape == x.shape else x.sigmoid())
        return x

    return run


STEPS = st.sampled_from(["mm", "mm", "relu", "rows", "turn", "add"])
SIZES = st.sampled_from([1, 3, 4, 32, 256])
TOPOLOGIES = st.builds(
    lambda flops, memory, link, latency: Topology(
        DeviceSpec(flops=(("float32", 10.0**flops),), bandwidth=10.0**memory, latency=0), (), Link(10.0**link, latency)
    ),
    st.integers(8, 12),
    st.integers(8, 11),
    st.integers(7, 11),
    st.sampled_from([0.0, 1e-7, 1e-5]),
)


def _random_graph(steps: Sequence[str], sizes: Sequence[int], mesh: Mesh) -> Graph:
    shapes = [(sizes[0], sizes[1])]
    rows, columns = shapes[0]
    for step, size in zip(steps, sizes[2:], strict=False):
        if step == "mm":
            shapes.append((columns, size))
            columns = size
        elif step == "turn":
            rows, columns = columns, rows
    return graph_of(_chain(steps), *shapes, mesh=mesh)


@settings(max_examples=30, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=3), st.lists(SIZES, min_size=5, max_size=5), TOPOLOGIES)
def test_one_axis_is_within_5_percent_of_the_best(steps: list[str], sizes: list[int], topology: Topology) -> None:
    start = start_of(_random_graph(steps, sizes, ONE), ONE, topology)
    found = search(start, {}).best.seconds
    assert found <= start.seconds
    assert found <= 1.05 * least_of_all(start, ONE)


@settings(max_examples=8, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=2), st.lists(SIZES, min_size=4, max_size=4), TOPOLOGIES)
def test_two_axes_are_within_5_percent_of_the_best(steps: list[str], sizes: list[int], topology: Topology) -> None:
    start = start_of(_random_graph(steps, sizes, TWO), TWO, topology)
    assume(len(start.graph.nodes) < 3)
    assert search(start, {}).best.seconds <= 1.05 * least_of_all(start, TWO)


def test_a_search_that_may_not_work_finds_what_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says that it knows nothing of the best."""
    monkeypatch.setattr("samite.passes.placement.integer.solver.NODE_LIMIT", 0)
    start = start_of(mm_graph(), ONE, Topology())
    found = search(start, {})
    assert found.best.seconds <= start.seconds
    assert found.gap in (0.0, 1.0)  # solved before the first node, or not at all


def test_functions_without_like_parts_are_cut_in_coarser_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(lambda x: torch.softmax((x @ x).relu().relu().relu() + x, 1), (8, 8))
    fine = len(alike(graph, [None]).first)
    monkeypatch.setattr("samite.passes.placement.integer.classes.MOST", fine - 1)
    coarse = alike(graph, [None])
    assert len(coarse.first) < fine
    assert len(coarse.of) == 1 + len(graph.nodes)


# ---- what the search stands on -----------------------------------------------------------------------------------


def mm_graph(mesh: Mesh = ONE) -> Graph:
    return graph_of(lambda x, w: (x @ w).relu(), (8, 4), (4, 16), mesh=mesh)


def test_every_strategy_is_its_base_but_for_one_axis() -> None:
    for node in mm_graph(TWO).nodes:
        for made in all_plans(node.op, TWO):
            assert plan_between(bind(node.op), made.needs, made.results, TWO) is not None


def test_strategies_of_a_product() -> None:
    """Rows, columns, what is summed, either factor a partial sum, or nothing."""
    (mm, *_) = mm_graph().nodes
    found = {(*map(str, made.needs), *map(str, made.results)) for made in all_plans(mm.op, ONE)}
    assert found == {
        ("[8, 4]", "[4, 16]", "[8, 16]"),
        ("[8:a, 4]", "[4, 16]", "[8:a, 16]"),
        ("[8, 4]", "[4, 16:a]", "[8, 16:a]"),
        ("[8, 4:a]", "[4:a, 16]", "[8, 16] sum(a)"),
        ("[8, 4] sum(a)", "[4, 16]", "[8, 16] sum(a)"),
        ("[8, 4]", "[4, 16] sum(a)", "[8, 16] sum(a)"),
    }


def test_no_rank_is_left_without_elements() -> None:
    mesh = Mesh(("a", "b"), (4, 2))
    assert [str(Layout((d,))) for d in placings((Factor(8),), "a", mesh)] == ["[8:a]"]
    assert [str(Layout((d,))) for d in placings((Factor(8, ("a",)),), "b", mesh)] == ["[8:a.b]"]
    assert [str(Layout((d,))) for d in placings((Factor(8, ("b",)),), "a", mesh)] == ["[8:a.b]"], "in mesh order"
    assert not list(placings((Factor(4, ("a",)),), "b", mesh)), "a chunk of one element"
    assert not list(placings((Factor(5),), "a", mesh)), "three of two, and an empty rank"
    assert [str(Layout((d,))) for d in placings((Factor(7),), "a", mesh)] == ["[7:a]"]


def test_ops_cost_what_the_roofline_says() -> None:
    topology = Topology(DeviceSpec(flops=(("float32", 1e6),), bandwidth=1e12, latency=0.5), (), Link(1e3, 0.25))
    costs = Costs(ONE, topology)
    (mm, relu) = mm_graph().nodes
    plans = {str(made.needs[0]): made for made in all_plans(mm.op, ONE)}
    assert costs.op(mm.op, plans["[8, 4]"]) == pytest.approx(0.5 + 2 * 8 * 4 * 16 / 1e6)
    assert costs.op(mm.op, plans["[8:a, 4]"]) == pytest.approx(0.5 + 8 * 4 * 16 / 1e6)
    slow = Costs(ONE, Topology(DeviceSpec(bandwidth=1e3, latency=0)))
    unsplit = all_plans(relu.op, ONE)[0]
    assert slow.op(relu.op, unsplit) == pytest.approx(2 * 4 * 8 * 16 / 1e3)


def test_reshards_cost_what_their_plan_moves() -> None:
    costs = Costs(ONE, Topology(DeviceSpec(bandwidth=1e12, latency=0), (), Link(1e3, 0.25)))
    type = mm_graph().types[0]
    whole, rows = Layout.replicated((8, 4)), Layout(((Factor(8, ("a",)),), (Factor(4),)))
    owed = Layout(whole.dims, "sum", frozenset("a"))
    assert costs.reshard(rows, whole, type) == pytest.approx(0.25 + 4 * 16 / 1e3)
    assert costs.reshard(owed, whole, type) == pytest.approx(0.25 + 4 * 32 / 1e3)
    assert costs.reshard(owed, whole, type, waits=False) == pytest.approx(4 * 32 / 1e3), "it travels in a bucket"
    assert costs.reshard(owed, rows, type, waits=False) == pytest.approx(0.25 + 4 * 16 / 1e3), "which this does not"
    assert costs.reshard(whole, whole, type) == 0


def test_memory_is_what_is_alive() -> None:
    """x (8, 4) and w (4, 16) all the time, the product (8, 16) until its only use, the result from there."""
    graph = mm_graph()
    placed = start_of(graph, ONE, Topology())
    assert peak(placed).state == 4 * (8 * 4 + 4 * 16)
    assert peak(placed).nbytes == 4 * (8 * 4 + 4 * 16 + 2 * 8 * 16)
    assert peak(placed).node == 1
    assert [(each.value, each.first, each.last) for each in held(placed)][-2:] == [(2, 0, 1), (3, 1, 2)]


def test_a_view_takes_no_memory_and_keeps_what_it_looks_at() -> None:
    graph = graph_of(lambda x: (x.relu().t(), x.neg())[0].relu(), (8, 4))
    placed = start_of(graph, ONE, Topology())
    spans = {each.value: (each.first, each.last) for each in held(placed)}
    names = [node.op.name for node in graph.nodes]
    turned = names.index("aten.t")
    assert graph.nodes[turned].results[0] not in spans
    assert spans[graph.nodes[turned].operands[0]][1] == len(names) - 1


def test_layers_are_alike() -> None:
    def net(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = torch.softmax((x @ w).relu(), 1)
        return x

    def classes(layers: int) -> int:
        graph = graph_of(net, (8, 8), *[(8, 8)] * layers)
        found = alike(graph, [None] * len(graph.arguments))
        assert sum(found.sizes) == len(graph.arguments) + len(graph.nodes)
        return len(found.first)

    assert classes(12) == classes(20) < 20 * 3
