"""fuse_collectives and bucket_collectives on random local programs: all ranks get what they got before, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lockstep_graphs import run_graph
from programs import collective, traced
from samite.ir.collectives import join_axes
from samite.ir.importer import import_graph
from samite.ir.module import Module
from samite.mesh import Mesh
from samite.passes.base import Pass
from samite.passes.bucket_collectives import BucketCollectives
from samite.passes.choose_algorithm import ChooseAlgorithm
from samite.passes.fuse_collectives import FuseCollectives
from samite.passes.overlap_communication import OverlapCommunication
from samite.passes.traffic import collectives
from samite.topology import Link, Topology

MESH = Mesh(("dp", "tp"), (2, 3))
AXES = [("dp",), ("tp",), ("dp", "tp"), ("tp", "dp")]
WIDTH = 6
"""Rows of every value: all groups of ranks can share them evenly."""
UNLIKE = Topology(links=(("dp", Link(1e4, 1e-3)), ("tp", Link(1e9, 1e-6))))

Instruction = tuple[str, int, int, tuple[str, ...], str]
"""An op, which values it takes, over which axes, and how it reduces."""
INSTRUCTIONS = st.tuples(
    st.sampled_from(["all_reduce", "all_reduce", "shard", "all_gather", "gathered_shard", "reduced_shard", "add"]),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from(AXES),
    st.sampled_from(["sum", "sum", "max"]),
)


def whole(x: Tensor) -> Tensor:
    """A value of `WIDTH` rows again, so that all values fit all ops."""
    return x if x.shape[0] == WIDTH else torch.cat([x] * (WIDTH // x.shape[0] + 1))[:WIDTH]


def step(values: list[Tensor], instruction: Instruction) -> Tensor:
    op, i, j, axes, kind = instruction
    x, joined, parts = values[i % len(values)], join_axes(axes), 1
    for axis in axes:
        parts *= MESH[axis]
    match op:
        case "all_reduce":
            return collective.all_reduce(x, joined, kind)
        case "shard":
            return whole(collective.shard(x, joined, 0, parts))
        case "all_gather":
            return whole(collective.all_gather(x, joined, 0, parts))
        case "gathered_shard":
            return collective.shard(collective.all_gather(x, joined, 0, parts), joined, 0, parts)
        case "reduced_shard":
            return whole(collective.shard(collective.all_reduce(x, joined, kind), joined, 0, parts))
        case _:
            return x - 2 * values[j % len(values)]


def program(instructions: Sequence[Instruction]) -> Callable[..., tuple[Tensor, ...]]:
    def run(*arguments: Tensor) -> tuple[Tensor, ...]:
        values = list(arguments)
        for instruction in instructions:
            values.append(step(values, instruction))
        return tuple(values[-4:])

    return run


def inputs(count: int = 2) -> list[list[Tensor]]:
    """Small whole numbers: sums are exact in any order."""
    return [[torch.randint(-4, 5, (WIDTH,)).double() for _ in range(count)] for _ in range(MESH.size)]


def results(module: Module, given_: list[list[Tensor]]) -> list[tuple[Tensor, ...]]:
    return run_graph(module.graph, MESH, given_)


def same(before: Module, passes: Sequence[Pass]) -> Module:
    after = before
    for p in passes:
        after = p.run(after)
    given_ = inputs()
    for old, new in zip(results(before, given_), results(after, given_), strict=True):
        for x, y in zip(old, new, strict=True):
            assert torch.equal(x, y)
    return after


@settings(max_examples=40)
@given(st.lists(INSTRUCTIONS, min_size=1, max_size=12), st.sampled_from([1, 100, 10_000]))
def test_results_are_the_same(instructions: list[Instruction], bucket_bytes: int) -> None:
    before = import_graph(traced(program(instructions), *inputs()[0]).graph, mesh=MESH)
    fused = same(before, [FuseCollectives()])
    bucketed = same(before, [FuseCollectives(), BucketCollectives(bucket_bytes)])
    same(before, [FuseCollectives(), BucketCollectives(bucket_bytes), OverlapCommunication()])
    same(before, [BucketCollectives(bucket_bytes), ChooseAlgorithm(UNLIKE, ("direct", "tree")), OverlapCommunication()])
    counts = [len(list(collectives(m.graph, MESH))) for m in (before, fused, bucketed)]
    assert counts == sorted(counts, reverse=True)
    moved = [sum(c.nbytes for c in collectives(m.graph, MESH)) for m in (before, fused)]
    assert moved[1] <= moved[0]


@pytest.mark.parametrize("limit, buckets", [(1, 8), (6 * 8 * 2, 4), (6 * 8 * 3, 3), (1 << 20, 1)])
def test_buckets_go_at_their_size(limit: int, buckets: int) -> None:
    """Eight reductions of six float64 each."""

    def run(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(collective.all_reduce(x * i, "dp", "sum") for i in range(8))

    before = import_graph(traced(run, inputs()[0][0]).graph, mesh=MESH)
    after = BucketCollectives(limit).run(before)
    assert len(list(collectives(after.graph, MESH))) == buckets
    given_ = inputs(1)
    assert all(
        torch.equal(x, y)
        for old, new in zip(results(before, given_), results(after, given_), strict=True)
        for x, y in zip(old, new, strict=True)
    )


def test_a_bucket_names_the_lines_of_its_members_the_last_one_first() -> None:
    text = """
#first = loc("backward:1"("train.py":1:0))
#last = loc("backward:2"("train.py":2:0))
module attributes {dist.mesh = #dist.mesh<["dp", "tp"], [2, 3], ["cpu"]>} {
  func.func @main(%x: !torch.vtensor<[6],f32>) -> (!torch.vtensor<[6],f32>, !torch.vtensor<[6],f32>) {
    %a = "dist.all_reduce"(%x) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0} :
      (!torch.vtensor<[6],f32>) -> !torch.vtensor<[6],f32> loc(#first)
    %y = torch.aten.neg %x : !torch.vtensor<[6],f32> -> !torch.vtensor<[6],f32>
    %b = "dist.all_reduce"(%y) {axes = ["dp"], reduce_type = "sum", algorithm = "auto", chunk_bytes = 0} :
      (!torch.vtensor<[6],f32>) -> !torch.vtensor<[6],f32> loc(#last)
    return %a, %b : !torch.vtensor<[6],f32>, !torch.vtensor<[6],f32>
  }
}"""
    bucketed = Module.parse(BucketCollectives().run(Module.parse(text)).text())
    [found] = collectives(bucketed.graph, MESH)
    assert found.source.others == ("train.py:1",)
    assert (found.source.line, found.source.phase, found.shape) == ("train.py:2", "backward", (12,))
