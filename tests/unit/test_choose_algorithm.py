"""What all_reduces cost, and that those written in another way give what they gave."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstep_graphs import run_graph
from programs import collective, traced
from samite.ir.importer import import_graph
from samite.ir.module import Module
from samite.mesh import Mesh
from samite.passes.choose_algorithm import ChooseAlgorithm
from samite.passes.communication import Communication, all_reduce_seconds, best_chunk
from samite.passes.traffic import collectives
from samite.topology import DeviceSpec, Link, Topology

LINK, DEVICE = Link(bandwidth=1e9, latency=1e-4), DeviceSpec(bandwidth=3e9)  # beta and gamma are 1 ns a byte
HOSTS = Topology.from_dict(
    {
        "links": {
            "host": {"latency": 1e-3, "bandwidth": 1e8},
            "socket": {"latency": 1e-5, "bandwidth": 1e9},
            "core": {"latency": 1e-6, "bandwidth": 1e10},
        }
    }
)


def test_formulas_by_hand() -> None:
    """4 MB among 4 and among 6: a byte takes 1 ns to send and 1 ns to reduce, a message 100 µs."""
    of = {(a, p): all_reduce_seconds(a, 4e6, p, LINK, DEVICE) for a in ("direct", "ring", "tree") for p in (1, 4, 6)}
    assert of["direct", 4] == pytest.approx(1e-4 + 3 * 8e-3)
    assert of["ring", 4] == pytest.approx(6e-4 + 6e-3 + 3e-3)
    assert of["tree", 4] == pytest.approx(2 * (1e-4 + 8e-3))
    assert of["tree", 6] == pytest.approx(4 * 1e-4 + 4 * 4e-3 + 3 * 4e-3), "two extra ranks, two extra messages"
    assert {of[a, 1] for a in ("direct", "ring", "tree")} == {0.0}


def test_pieces_hide_the_reduction_of_all_but_one() -> None:
    part = all_reduce_seconds("ring", 4e6, 4, LINK, DEVICE, 250_000)
    assert part == pytest.approx(3 * (2 * (4 * 1e-4 + 1e-3) + 2.5e-4))
    assert best_chunk(4e6, 4, LINK, DEVICE) == 1 << 19, "the power of two that is nearest to sqrt(2 m alpha / gamma)"
    assert best_chunk(4e3, 4, LINK, DEVICE) == 0, "not worth a message"
    assert best_chunk(4e6, 4, Link(1e9, 0.0), DEVICE) == 0


@given(st.sampled_from(["direct", "ring", "tree"]), st.floats(1, 1e9), st.integers(2, 64))
def test_pieces_and_bytes_cost_what_they_should(algorithm: str, nbytes: float, ranks: int) -> None:
    chunk = best_chunk(nbytes, ranks, LINK, DEVICE)
    assert all_reduce_seconds("ring", nbytes, ranks, LINK, DEVICE, chunk) <= all_reduce_seconds(
        "ring", nbytes, ranks, LINK, DEVICE
    )
    less, more = (all_reduce_seconds(algorithm, n, ranks, LINK, DEVICE) for n in (nbytes, 2 * nbytes))
    assert LINK.latency < less < more


def test_measured_times_go_before_formulas() -> None:
    link = Link(1e9, 1e-4, times=((1e3, 2e-4), (1e6, 2e-3)), algorithms=(("ring", ((1e3, 1e-3), (2e3, 2e-3))),))
    prices = Communication({"dp": 2}, Topology(links=(("dp", link),)))
    assert prices.all_reduce("auto", 1e6, ("dp",)) == pytest.approx(2e-3), "two ranks receive as much as they reduce"
    assert [prices.all_reduce("ring", n, ("dp",)) for n in (10, 1.5e3, 1e6)] == pytest.approx(
        [1e-3, 1.5e-3, 2e-3 + (1e6 - 2e3) / 1e9]
    )
    step = chosen(2000, {"dp": 2}, ("dp",), prices.topology, ("direct", "ring"))[1]
    assert step.notes == (), "what was not measured is not held against what was"


def chosen(
    size: int, mesh: dict[str, int], axes: tuple[str, ...], topology: Topology, algorithms: tuple[str, ...] = ()
) -> tuple[Module, ChooseAlgorithm]:
    where = Mesh(tuple(mesh), tuple(mesh.values()))
    graph = traced(lambda x: (collective.all_reduce(x, ",".join(axes), "sum"),), torch.zeros(size)).graph
    step = ChooseAlgorithm(topology, algorithms)
    return step.run(import_graph(graph, mesh=where)), step


def test_it_says_what_it_chose_and_what_that_saves() -> None:
    _, step = chosen(1_000_000, {"host": 2, "core": 4}, ("host", "core"), HOSTS)
    (note,) = step.notes
    assert note == (
        "4.0 MB over host·core: inside core, then over host as the backend does, 12.8 ms instead of 85.1 ms"
    )


def test_hierarchies_nest() -> None:
    made, step = chosen(100_001, {"host": 2, "socket": 2, "core": 3}, ("host", "socket", "core"), HOSTS)
    found = [(c.verb, c.axes, c.shape) for c in collectives(made.graph, made.mesh)]
    assert found == [
        ("reduce_scatter", ("core",), (100_002,)),
        ("reduce_scatter", ("socket",), (33_334,)),
        ("all_reduce", ("host",), (16_667,)),
        ("all_gather", ("socket",), (16_667,)),
        ("all_gather", ("core",), (33_334,)),
    ]
    assert "inside core, then inside socket, then over host as" in step.notes[0]


KINDS = {"sum": torch.float64, "max": torch.int32, "min": torch.bfloat16, "prod": torch.bool}


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_the_same_whatever_the_size(kind: str) -> None:
    mesh = Mesh(("host", "core", "one"), (2, 3, 1))
    for shape in [(n,) for n in range(2 * mesh.size + 2)] + [(), (6, 2), (5, 7)]:
        x = [(torch.rand(shape) * 4).to(KINDS[kind]) for _ in range(mesh.size)]
        graph = traced(lambda x: (collective.all_reduce(x, "host,core,one", kind),), x[0]).graph
        before = import_graph(graph, mesh=mesh)
        # Messages are free inside, so that even a number is worth it.
        free = Topology(links=(("host", Link(1e3, 1e-3)), ("core", Link(1e12, 0.0)), ("one", Link(1e12, 0.0))))
        after = ChooseAlgorithm(free).run(before)
        wanted, got = (run_graph(m.graph, mesh, [[one] for one in x]) for m in (before, after))
        for (one,), (other,) in zip(wanted, got, strict=True):
            torch.testing.assert_close(other, one)
        if shape and min(shape) and 0 not in shape and x[0].numel() > 3:
            assert "reduce_scatter" in after.text(), shape
