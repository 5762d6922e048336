"""Reports: layouts in words, the partition table, the collectives and what they carry."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import ceil, prod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import samite
from models import MLP
from programs import argument, collective, program, split
from samite import Partial, Replicate, Shard
from samite.api.program import Built
from samite.hal.program import Argument, Result
from samite.ir.module import Module
from samite.layout import Factor, Layout, from_placements
from samite.mesh import Mesh
from samite.report import (
    CollectiveRow,
    PartitionRow,
    collective_table,
    condense,
    console,
    describe,
    partition_table,
    report_as_text,
)
from samite.report.provenance import Provenance
from samite.report.words import parts, words

MESH = {"dp": 2, "tp": 3}


@pytest.mark.parametrize(
    "layout, said",
    [
        ("[8, 4]", "Replicate()"),
        ("[]", "Replicate()"),
        ("[8:dp, 4]", "dp: Shard(0)"),
        ("[8:tp, 4:dp]", "tp: Shard(0), dp: Shard(1)"),
        ("[12:dp.tp]", "dp·tp: Shard(0)"),
        ("[12:tp.dp]", "tp·dp: Shard(0)"),
        ("[(4 6:tp), 5]", "tp: Shard(0) in each of 4"),
        ("[(4:dp 6:tp)]", "dp: Shard(0), tp: Shard(0) in each of 4"),
        ("[8] sum(dp)", "dp: Partial(sum)"),
        ("[8:dp] max(tp)", "dp: Shard(0), tp: Partial(max)"),
        ("[8] sum(dp.tp)", "dp·tp: Partial(sum)"),
        ("[8] at tp=1", "Replicate() at tp=1"),
        ("[8:dp, 4] at tp=1", "dp: Shard(0) at tp=1"),
        ("[8] at tp=1.dp=0", "Replicate() at dp=0.tp=1"),
    ],
)
def test_words(layout: str, said: str) -> None:
    assert words(Layout.parse(layout), MESH) == said


def test_an_axis_of_one_rank_says_nothing() -> None:
    assert words(Layout.parse("[8:dp, 4:tp]"), {"dp": 1, "tp": 3}) == "tp: Shard(1)"


placements = st.one_of(st.integers(0, 2).map(Shard), st.just(Replicate()), st.just(Partial("sum")))


@given(
    st.lists(st.integers(1, 9), min_size=3, max_size=3),
    st.fixed_dictionaries({"dp": placements, "tp": placements, "pp": placements}),
)
def test_words_and_parts_are_those_of_placements(shape: list[int], placed: dict[str, Any]) -> None:
    mesh = {"dp": 2, "tp": 3, "pp": 1}
    layout = from_placements(shape, placed, mesh)
    expected = {axis: p for axis, p in placed.items() if p != Replicate() and mesh[axis] > 1}
    said = words(layout, mesh)
    for axis, placement in expected.items():
        inner = "sum" if placement == Partial("sum") else getattr(placement, "dim", "")
        assert f"{type(placement).__name__}({inner})" in said
        assert axis in said
    assert bool(expected) == (said != "Replicate()")
    for dim, count in parts(layout, mesh).items():
        assert count == prod(mesh[axis] for axis, p in expected.items() if p == Shard(dim))
        assert layout.local_shape(mesh)[dim] >= ceil(shape[dim] / count)


def train_step(model: MLP, optimizer: torch.optim.Optimizer, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = model(x, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def lowered(mesh: Mesh, placements: Any, *, steps: int = 1) -> Built:
    """The program of a step of an MLP that has run `steps` times."""
    model = MLP(inputs=16, hidden=32, classes=8, layers=2)
    optimizer = torch.optim.AdamW(model.parameters())
    step = samite.compile(train_step, mesh=mesh, placements=placements)
    batch = torch.randn(12, 16), torch.randint(8, (12,))
    for _ in range(steps):
        step(model, optimizer, *batch)
    return step.lower(model, optimizer, *batch)[1]


@pytest.fixture(scope="module")
def data_parallel() -> Built:
    mesh = samite.mesh("cpu", dp=2, engine="lockstep")
    return lowered(mesh, {"x": {"dp": Shard(0)}, "labels": {"dp": Shard(0)}})


@pytest.fixture(scope="module")
def tensor_parallel() -> Built:
    return lowered(samite.mesh("cpu", tp=4, engine="lockstep"), {"model.layers.0.weight": {"tp": Shard(0)}})


def named(rows: tuple[PartitionRow, ...]) -> dict[str, PartitionRow]:
    return {row.name: row for row in rows}


def test_there_is_a_row_for_every_argument_and_output(data_parallel: Built) -> None:
    rows = partition_table(data_parallel)
    assert [row.name for row in rows] == [*(a.name for a in data_parallel.program.arguments), "output"]
    assert rows[-1].kind == "result"


def test_a_batch_is_split_and_every_gradient_reduced(data_parallel: Built) -> None:
    rows = named(partition_table(data_parallel))
    x, weight = rows["x"], rows["model.layers.0.weight"]
    assert (x.shape, x.split_dims, x.parts, x.local_shape) == ((12, 16), (0,), (2,), (6, 16))
    assert (x.layout, x.rank_bytes, x.collectives) == ("dp: Shard(0)", 6 * 16 * 4, ())
    assert (weight.layout, weight.split_dims, weight.collectives) == ("Replicate()", (), ("all_reduce dp",))
    parameters = [row for row in rows.values() if row.name.startswith("model.")]
    assert len(parameters) == 6
    assert all(row.collectives == ("all_reduce dp",) for row in parameters)
    moment = rows["optimizer.layers.0.weight.exp_avg"]
    assert (moment.owner, moment.collectives) == ("model.layers.0.weight", ("all_reduce dp",))
    assert rows["output"].collectives == ("all_reduce dp",)


def test_one_bucket_carries_all_gradients(data_parallel: Built) -> None:
    [bucket] = [row for row in collective_table(data_parallel) if row.updates]
    assert set(bucket.updates) == {a.name for a in data_parallel.program.arguments if a.name.startswith("model.")}
    assert (bucket.verb, bucket.axes, bucket.count, bucket.uses) == ("all_reduce", ("dp",), 1, ())
    elements = prod(bucket.shape)
    assert elements >= sum(p.numel() for p in MLP().parameters())
    assert bucket.nbytes == bucket.total_bytes == 2 * ceil(elements / 2) * 4
    assert bucket.line.startswith(("tests/unit/models.py:", "models.py:"))


def test_activations_are_not_taken_for_gradients(tensor_parallel: Built) -> None:
    rows = named(partition_table(tensor_parallel))
    weight = rows["model.layers.0.weight"]
    assert (weight.split_dims, weight.parts, weight.local_shape) == ((0,), (4,), (8, 16))
    assert weight.collectives == ()  # its gradient is whole, though what it is computed from was communicated
    table = collective_table(tensor_parallel)
    assert table
    assert not any(row.updates for row in table if prod(row.shape) >= 12 * 8)


def test_condensing_keeps_every_tensor_and_byte(data_parallel: Built) -> None:
    rows = partition_table(data_parallel)
    short = condense(rows)
    assert len(short) < len(rows)
    assert sum(row.rank_bytes for row in short) == sum(row.rank_bytes for row in rows)
    assert sum(row.count * (1 + len(row.alike)) for row in short) == len(rows)
    [weight] = [row for row in short if row.name == "model.layers.0.weight"]
    assert weight.alike == ("step", "exp_avg", "exp_avg_sq")
    biases = [row for row in short if row.name == "model.layers.*.bias"]
    assert [(row.count, row.rank_bytes) for row in biases] == [(2, 2 * (3 * 32 + 1) * 4)]


def test_state_that_lies_otherwise_has_its_own_row() -> None:
    base = PartitionRow("model.w", "state", "float32", (8, 8), (), (), "Replicate()", (8, 8), 256, ())
    like = PartitionRow("o.w.exp_avg", "state", "float32", (8, 8), (), (), "Replicate()", (8, 8), 256, (), "model.w")
    split = PartitionRow("o.w.m", "state", "float32", (8, 8), (0,), (2,), "dp: Shard(0)", (4, 8), 128, (), "model.w")
    parameter, other = condense([base, like, split])
    assert (parameter.alike, parameter.rank_bytes) == (("exp_avg",), 512)
    assert (other.name, other.rank_bytes) == ("o.w.m", 128)


OUTPUT = Result("output", "float32", split(2))


def hand_written(function: Callable[..., Any], arguments: list[Argument], results: list[Result], mesh: Mesh) -> Built:
    return Built(program(function, arguments, results, mesh), ())


def test_a_weight_that_is_gathered_to_be_used_says_so() -> None:
    mesh = Mesh(("dp",), (2,))
    weight = argument("w", split(8, 4, dp=0), kind="state")

    def forward(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x @ collective.all_gather(w, "dp", 0, 2).t(),)

    built = hand_written(
        forward, [weight, argument("x", split(3, 4))], [Result("output", "float32", split(3, 8))], mesh
    )
    rows = named(partition_table(built))
    assert rows["w"].collectives == ("all_gather dp",)
    assert [row.uses for row in collective_table(built)] == [("w",)]
    assert rows["x"].collectives == ()
    assert rows["output"].collectives == ()


def test_the_parts_of_a_bucket_are_told_apart() -> None:
    """Two values travel in one all_reduce; one of them had been reduced over another axis before."""
    mesh = Mesh(("dp", "tp"), (2, 2))

    def step(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = collective.all_reduce((a * 2).exp(), "tp", "sum")
        joined = collective.all_reduce(torch.cat([first, b.exp()]), "dp", "sum")
        return tuple(joined.split_with_sizes([4, 6]))

    whole = [argument("a", split(4)), argument("b", split(6))]
    built = hand_written(step, whole, [Result("p", "float32", split(4)), Result("q", "float32", split(6))], mesh)
    graph = Module.parse(built.program.module).graph
    provenance = Provenance(graph)
    both, one = (provenance.behind(value) for value in graph.returns)
    assert [graph.nodes[i].op.literals["axes"] for i in both] == [("tp",), ("dp",)]
    assert [graph.nodes[i].op.literals["axes"] for i in one] == [("dp",)]
    assert provenance.ahead(0) == ()


def test_alike_collectives_of_one_line_are_one_row() -> None:
    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = (x @ w).tanh()
        return x @ w

    mesh = samite.mesh("cpu", tp=2, engine="lockstep")
    inputs = torch.randn(4, 8), torch.randn(8, 8)
    _, built = samite.compile(forward, mesh=mesh, placements={"w": {"tp": Shard(0)}}).lower(*inputs)
    first, last = collective_table(built)
    assert (first.axes, first.count, first.total_bytes) == (("tp",), 3, 3 * first.nbytes)
    assert (last.count, last.results) == (1, ("output",))
    assert int(last.line.rpartition(":")[2]) == int(first.line.rpartition(":")[2]) + 1


def test_a_report_is_plain_data(data_parallel: Built) -> None:
    report = describe(data_parallel)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["axes"] == {"dp": 2}
    assert data["function"] == "train_step"
    assert [p["name"] for p in data["passes"]] == [r.name for r in data_parallel.records]
    assert len(data["partition"]) == len(report.partition)
    assert data["state_bytes"]["rank"] == data["state_bytes"]["global"]
    assert data["verdict"] == report.verdict


def test_pinned_state_counts_where_it_is_held() -> None:
    mesh, small, large = Mesh(("dp", "pp"), (2, 2)), split(4, dp=0).pinned({"pp": 0}), split(6).pinned({"pp": 1})
    built = hand_written(
        lambda a, b, c: (a + 1, b + 1, c + 1),
        [argument(name, x, kind="state") for name, x in zip("abc", (small, large, split(3)), strict=True)],
        [
            Result(name, "float32", x, alias=i)
            for i, (name, x) in enumerate(zip("abc", (small, large, split(3)), strict=True))
        ],
        mesh,
    )
    rows = partition_table(built)
    assert [(row.layout, row.home) for row in rows] == [
        ("dp: Shard(0) at pp=0", (("pp", 0),)),
        ("Replicate() at pp=1", (("pp", 1),)),
        ("Replicate()", ()),
    ]
    assert [row.rank_bytes for row in rows] == [8, 24, 12]
    report = describe(built)
    assert report.state_bytes == (24 + 12, (4 + 6 + 3) * 4)
    assert report.verdict.startswith("Each of 4 ranks holds up to 36 bytes of 52 bytes of state")
    out = console()
    with out.capture() as capture:
        out.print(report_as_text(report))
    assert "at pp=1" in " ".join(capture.get().split())


def test_verdicts() -> None:
    row = CollectiveRow("all_reduce", ("dp",), 2, 500, (250,), "float32", "backward", "train.py:3")
    state = PartitionRow("w", "state", "float32", (10, 10), (0,), (2,), "tp: Shard(0)", (5, 10), 200, ())
    report = describe(hand_written(lambda x: (x + 1,), [argument("x", split(2))], [OUTPUT], Mesh(("dp",), (4,))))
    fields = {**vars(report), "partition": (state,)}
    make = type(report)
    held = "Each of 4 ranks holds 200 bytes of 400 bytes of state"
    assert make(**fields).verdict == f"{held} and receives nothing: they do not communicate."
    assert (
        make(**{**fields, "collectives": (row,)}).verdict
        == f"{held}; a call brings it 1.0 kB in 2 collectives over dp."
    )
    two = (row, CollectiveRow("all_gather", ("tp", "dp"), 1, 7000, (1,), "float32", "forward", ""))
    expected = f"{held}; a call brings it 8.0 kB in 3 collectives (tp·dp 7.0 kB, dp 1.0 kB)."
    assert make(**{**fields, "collectives": two}).verdict == expected
    assert make(**{**fields, "axes": {"dp": 1}}).verdict.startswith("One rank holds all state, 200 bytes,")


def test_the_printed_report(data_parallel: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out = console()
    with out.capture() as capture:
        out.print(report_as_text(describe(data_parallel)))
    text = capture.get()
    lines = text.splitlines()
    assert "train_step on cpu dp=2 (2 ranks, engine lockstep)" in lines[0]
    assert all(record.name in text for record in data_parallel.records)
    [row] = [line for line in lines if line.startswith("model.layers.*.bias ×2")]
    assert "Replicate()" in row
    assert "all_reduce dp" in row
    assert "update of 6 tensors, output" in text
    assert "exp_avg, exp_avg_sq, step" in text
    assert text.rstrip().endswith(describe(data_parallel).verdict)


def test_a_program_that_does_not_communicate() -> None:
    built = hand_written(lambda x: (x + 1,), [argument("x", split(2))], [OUTPUT], Mesh(("dp",), (2,)))
    out = console()
    with out.capture() as capture:
        out.print(report_as_text(describe(built)))
    assert "No collectives." in capture.get()
    assert collective_table(built) == ()


def test_factors_that_regroup_are_counted_as_parts() -> None:
    layout = Layout(((Factor(3), Factor(8, ("tp",))), (Factor(4),)))
    assert parts(layout, {"tp": 2}) == {0: 2}
    assert words(layout, {"tp": 2}) == "tp: Shard(0) in each of 3"


class Embedded(nn.Module):
    """Its second table is looked up at the same places for every row of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.out = nn.Embedding(11, 8), nn.Embedding(6, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        at = self.places(torch.arange(x.shape[1]))
        return (self.out((self.words(x) + at).tanh()).squeeze(-1) - labels).square().mean()


def test_a_gradient_that_is_reduced_before_it_is_scattered_came_through_that_reduction() -> None:
    model = Embedded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mesh = samite.mesh("cpu", dp=2, engine="lockstep")
    step = samite.compile(train_step, mesh=mesh, placements={"x": {"dp": Shard(0)}, "labels": {"dp": Shard(0)}})
    built = step.lower(model, optimizer, torch.randint(11, (4, 6)), torch.randn(4, 6))[1]
    tables = {row.name: row.collectives for row in partition_table(built)}
    assert tables["model.words.weight"] == tables["model.places.weight"] == ("all_reduce dp",)


def test_a_bucket_has_the_lines_of_all_that_travels_in_it(data_parallel: Built) -> None:
    [bucket] = [row for row in collective_table(data_parallel) if len(row.updates) > 1]
    assert bucket.others
    assert all(re.fullmatch(r"\S+\.py:\d+", line) for line in (bucket.line, *bucket.others))
    assert bucket.line not in bucket.others
