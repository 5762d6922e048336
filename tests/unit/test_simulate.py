"""Timelines against ones made by hand. An op on 1000 float32 takes 8 µs here, an all_reduce of them 4 µs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from programs import collective, traced
from samite.ir.importer import import_graph
from samite.ir.module import Module
from samite.mesh import Mesh
from samite.passes.overlap_communication import OverlapCommunication
from samite.passes.simulate import simulate
from samite.timeline import Lane, Span, Timeline
from samite.topology import DeviceSpec, Link, Overlap, Topology

MESH = Mesh(("dp",), (2,))
DEVICE = DeviceSpec(bandwidth=1e9, latency=0.0, flops=(("float32", 1e9),))
LINK = Link(1e9, 0.0, times=((4000, 4e-6),))


def topology(efficiency: float, latency: float = 0.0) -> Topology:
    return Topology(DEVICE, (("dp", LINK),), overlap=Overlap(efficiency, latency))


def module(run: Any, count: int = 2, size: int = 1000) -> Module:
    return import_graph(traced(run, *[torch.zeros(size)] * count).graph, mesh=MESH)


def reduced(x: Tensor) -> Tensor:
    return collective.all_reduce(x, "dp", "sum")


def under_way(x: Tensor, token: int = 0) -> Tensor:
    return collective.start(x, "all_reduce", "dp", [], [], "sum", 2, token, [], -1)


def spans(timeline: Timeline, lane: int) -> list[tuple[str, float, float]]:
    return [(s.name, round(1e6 * s.start, 3), round(1e6 * s.duration, 3)) for s in timeline.lanes[lane].spans]


def test_what_is_waited_for_at_once_holds_up_everything() -> None:
    found = simulate(module(lambda x, y: reduced(x.tanh()) * y.exp()).graph, MESH, topology(1.0))
    assert spans(found, 0) == [("tanh", 0, 8), ("exp", 12, 8), ("mul.Tensor", 20, 12)]
    assert spans(found, 1) == [("all_reduce dp", 8, 4)]
    assert (1e6 * found.seconds, found.hidden) == pytest.approx((32, 0))
    assert [span.name for span in found.critical()] == ["tanh", "all_reduce dp", "exp", "mul.Tensor"]


def test_what_is_started_runs_beside() -> None:
    found = simulate(module(lambda x, y: y.exp() * collective.wait(under_way(x))).graph, MESH, topology(1.0))
    assert spans(found, 0) == [("exp", 0, 8), ("mul.Tensor", 12, 12)], "torch traces exp first, then starts"
    run = lambda x, y: (s := under_way(x), y.exp() * collective.wait(s))[1]  # noqa: E731
    found = simulate(module(run).graph, MESH, topology(1.0))
    assert spans(found, 0) == [("exp", 0, 8), ("mul.Tensor", 8, 12)]
    assert spans(found, 1) == [("all_reduce dp", 0, 4)]
    assert found.hidden == pytest.approx(1.0)
    assert [span.name for span in found.critical()] == ["exp", "mul.Tensor"]


@pytest.mark.parametrize("efficiency, seconds", [(0.0, 24.0), (0.5, 22.0), (1.0, 20.0)])
def test_two_lanes_share_the_machine_as_far_as_it_says(efficiency: float, seconds: float) -> None:
    """4 µs of an all_reduce beside 8 of computing, then 12: with nothing hidden one after the other."""
    run = lambda x, y: (s := under_way(x), y.exp() * collective.wait(s))[1]  # noqa: E731
    found = simulate(module(run).graph, MESH, topology(efficiency))
    assert 1e6 * found.seconds == pytest.approx(seconds)
    assert found.hidden == pytest.approx(efficiency)


def test_messages_queue() -> None:
    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        first, second = under_way(x), under_way(y, 1)
        return collective.wait(second), collective.wait(first), reduced(x)

    found = simulate(module(run).graph, MESH, topology(1.0))
    assert spans(found, 1) == [("all_reduce dp", 0, 4), ("all_reduce dp", 4, 4), ("all_reduce dp", 8, 4)]
    assert len(found.critical()) == 3
    assert found.hidden == pytest.approx(0)


def test_products_take_what_their_arithmetic_takes() -> None:
    found = simulate(module(lambda x: x.view(10, 100) @ x.view(100, 10), 1).graph, MESH, topology(1.0))
    assert spans(found, 0) == [("mm", 0, 20)], "2 * 10 * 10 * 100 operations at 1 GFLOP/s, more than 8.4 KB at 1 GB/s"


def test_measured_ops_take_what_was_measured() -> None:
    """By kind and size: 2000 operations lie half way between two sizes, 8000 bytes beyond the last."""
    times = (
        ("product", ((1e3, 1e-6), (3e3, 3e-6))),
        ("function", ((4e3, 7e-6),)),
        ("pass", ((1e3, 1e-6), (16e3, 5e-6))),
    )
    device = replace(DEVICE, times=times)

    def run(x: Tensor) -> Tensor:
        return (x.view(10, 10) @ x.view(10, 10)).tanh().neg()

    found = simulate(module(run, 1, 100).graph, MESH, replace(topology(1.0), device=device))
    assert spans(found, 0) == [("mm", 0, 2), ("tanh", 2, 7), ("neg", 9, 1)]
    found = simulate(module(lambda x: x.tanh(), 1).graph, MESH, replace(topology(1.0), device=device))
    assert spans(found, 0) == [("tanh", 0, 14)]


def test_views_of_what_was_transposed_are_copies() -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        square = x.view(10, 10)
        return square.view(100).neg(), square.t().reshape(100).neg()

    found = simulate(module(run, 1, 100).graph, MESH, topology(1.0))
    names = [name for name, _, _ in spans(found, 0)]
    assert names[0] == names[-1] == "neg"
    assert set(names[1:-1]) & {"clone", "view", "_unsafe_view"}, "the first view is none"


def test_loops_take_their_iterations() -> None:
    def run(x: Tensor) -> Tensor:
        return torch._higher_order_ops.map(lambda row: reduced(row.tanh()), x.view(4, 250))

    found = simulate(module(run, 1).graph, MESH, replace(topology(1.0), links=(("dp", Link(1e9, 0.0)),)))
    assert found.total("compute") == pytest.approx(4 * 2e-6)
    assert found.total("communication") == pytest.approx(4 * (1e-6 + 0.5e-6 * 3))


def test_overlap_is_predicted_and_undone_where_it_does_not_win() -> None:
    before = module(lambda x, y: (r := reduced(x), y.exp() * r)[1])
    step = OverlapCommunication(topology(1.0))
    made = step.run(before)
    assert "dist.start" in made.text()
    assert step.notes == (
        "1 collectives run beside computation, which hides 100% of the communication: 20 µs a call instead of 24 µs",
    )
    assert 1e6 * simulate(made.graph, MESH, topology(1.0)).seconds == pytest.approx(20)
    for hindered in (topology(0.0), topology(1.0, latency=5e-6)):
        step = OverlapCommunication(hindered)
        assert step.run(before).text() == before.text()
        assert step.notes == ()


def test_timelines_are_what_browsers_draw() -> None:
    lanes = Lane(0, "compute", (Span(0.0, 1e-3, "compute", "mm", "a.py:1", True),)), Lane(1, "compute", ())
    timeline = Timeline(lanes, 1e-3)
    events = json.loads(json.dumps(timeline.trace()))["traceEvents"]
    (drawn,) = [event for event in events if event["ph"] == "X"]
    assert (drawn["name"], drawn["ts"], drawn["dur"], drawn["pid"]) == ("mm", 0.0, 1000.0, 0)
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {"rank 0", "rank 1", "compute"}
    assert timeline.to_dict()["lanes"][0]["spans"][0]["line"] == "a.py:1"
    assert (timeline.total("compute"), timeline.total("idle")) == (1e-3, 0.0)
