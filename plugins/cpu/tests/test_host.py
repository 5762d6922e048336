"""Collectives through shared memory against their joint definition, over random meshes, dtypes and sizes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import samite_cpu.host
import samite_cpu.rounds
from samite.errors import OutOfMemory, WorkerError
from samite.hal.driver import Group
from samite.hal.shared import Segment
from samite.mesh import Mesh
from samite.runtime.interpreter import compute
from samite_cpu.host import HostCommunicator
from samite_cpu.rounds import shared_bytes

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.int16, torch.uint8, torch.bool)


def each(mesh: Mesh, act: Callable[[HostCommunicator, int], Any], **options: Any) -> list[Any]:
    """What `act` gives on every rank, the ranks being threads that share a segment."""
    segment = Segment.create(shared_bytes(mesh.size))
    results: list[Any] = [None] * mesh.size

    def run(rank: int) -> None:
        try:
            options_of = {"shared_memory": segment, **options}
            results[rank] = act(HostCommunicator(Group(mesh, rank, "", 0, options_of)), rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(mesh.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    segment.close()
    return results


@settings(max_examples=60)
@given(st.data())
def test_sequences_of_collectives(data: st.DataObject) -> None:
    """Groups change from one collective to the next, and slots are small, so that they are used again and again."""
    shape = data.draw(st.sampled_from([(2,), (3,), (4,), (2, 2), (2, 3), (1, 2)]))
    mesh = Mesh(("a", "b")[: len(shape)], shape)
    dtype = data.draw(st.sampled_from(DTYPES))
    calls: list[tuple[str, tuple[str, ...], tuple[Any, ...]]] = []
    for _ in range(data.draw(st.integers(1, 6))):
        axes = tuple(data.draw(st.permutations(mesh.axes)))[: data.draw(st.integers(1, len(shape)))]
        kind = data.draw(st.sampled_from(["sum", "max", "min", "prod"]))
        parts = len(mesh.peers(0, axes))
        ends = data.draw(st.permutations(range(parts)))
        arguments = {
            "all_reduce": (kind, data.draw(st.sampled_from(["auto", "direct", "ring", "tree"])), 8),
            "all_gather": (data.draw(st.integers(0, 1)),),
            "reduce_scatter": (0, kind),
            "all_to_all": (0, data.draw(st.integers(0, 1))),
            "permute": (tuple(zip(range(parts), ends, strict=True))[: data.draw(st.integers(0, parts))],),
        }
        verb = data.draw(st.sampled_from(sorted(arguments)))
        calls.append((verb, axes, arguments[verb]))
    started = data.draw(st.sets(st.integers(0, len(calls) - 1)))
    rows = mesh.size * data.draw(st.integers(0, 2))
    operands = [
        [(torch.arange(rows * 5).reshape(5, rows).T + 3 * rank + n).remainder(4).to(dtype) for rank in range(mesh.size)]
        for n in range(len(calls))
    ]

    def act(communicator: HostCommunicator, rank: int) -> list[torch.Tensor]:
        results: list[Any] = [
            communicator.start(verb, operands[n][rank], axes, *arguments)
            if n in started
            else getattr(communicator, verb)(operands[n][rank], axes, *arguments)
            for n, (verb, axes, arguments) in enumerate(calls)
        ]
        return [result.wait() if n in started else result for n, result in enumerate(results)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samite_cpu.rounds, "SLOT", data.draw(st.sampled_from([64, 1024])))
        patch.setattr(samite_cpu.host, "TWO_PHASES", data.draw(st.sampled_from([0, 1024])))
        results = each(mesh, act, timeout_s=20)
    for n, (verb, axes, arguments) in enumerate(calls):
        expected = compute(verb, operands[n], axes, arguments, mesh)
        for rank in range(mesh.size):
            assert not isinstance(results[rank], Exception), results[rank]
            assert torch.equal(results[rank][n], expected[rank]), (verb, axes, arguments)


def test_every_rank_has_the_same_bits() -> None:
    mesh = Mesh(("a",), (4,))
    for size in (1000, 100_001):
        x = [torch.randn(size) for _ in range(4)]
        results = each(mesh, lambda c, rank, x=x: c.all_reduce(x[rank], ("a",), "sum"), timeout_s=20)
        assert all(torch.equal(result, results[0]) for result in results)
        torch.testing.assert_close(results[0], sum(x))


def test_operands_stay_as_they_are_and_results_are_their_own() -> None:
    def act(communicator: HostCommunicator, rank: int) -> bool:
        x = torch.full((3,), float(rank))
        total = communicator.all_reduce(x, ("a",), "sum")
        for _ in range(3):
            communicator.all_reduce(torch.zeros(3), ("a",), "sum")
        communicator.barrier()
        return x.tolist() == [rank] * 3 and total.tolist() == [1.0] * 3

    assert each(Mesh(("a",), (2,)), act, timeout_s=20) == [True, True]


def test_a_peer_that_does_not_come() -> None:
    def act(communicator: HostCommunicator, rank: int) -> Any:
        return communicator.all_reduce(torch.ones(2), ("a",), "sum") if rank == 0 else None

    error, _ = each(Mesh(("a",), (2,)), act, timeout_s=0.2)
    assert isinstance(error, WorkerError)
    assert "rank 1 did not come" in error.what


def test_what_is_started_goes_on_while_a_rank_computes() -> None:
    """No rank waits before it has seen the collective's end, and none gives up the interpreter but in kernels."""
    over = [False, False]

    def act(communicator: HostCommunicator, rank: int) -> list[float]:
        under_way: Any = communicator.start("all_reduce", torch.ones(2**20), ("a",), "sum")
        x, until = torch.eye(64), time.monotonic() + 20
        while not under_way.future.done() and time.monotonic() < until:
            x = x @ x
        over[rank] = under_way.future.done()
        return under_way.wait().unique().tolist()

    assert each(Mesh(("a",), (2,)), act, timeout_s=20) == [[2.0], [2.0]]
    assert over == [True, True]


def test_what_goes_wrong_with_what_is_started_is_raised_where_it_is_waited_for() -> None:
    def act(communicator: HostCommunicator, rank: int) -> Any:
        if rank:
            return None
        under_way = communicator.start("all_reduce", torch.ones(2), ("a",), "sum")
        with pytest.raises(WorkerError, match="rank 1 did not come"):
            under_way.wait()
        communicator.close()
        return "raised"

    assert each(Mesh(("a",), (2,)), act, timeout_s=0.2) == ["raised", None]


def test_too_small_a_segment() -> None:
    segment = Segment.create(10)
    with pytest.raises(OutOfMemory):
        HostCommunicator(Group(Mesh(("a",), (2,)), 0, "", 0, {"shared_memory": segment}))
