"""Algorithms of all-reduce against their joint definition, the ranks being threads that meet at every message."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rank_threads import JointCommunicator, Table
from samite.mesh import Mesh
from samite.runtime.joint import compute
from samite_cpu.algorithms import ALGORITHMS

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def reduced(algorithm: str, operands: list[torch.Tensor], reduce_type: str, chunk: int = 0) -> list[torch.Tensor]:
    ranks = len(operands)
    table = Table(Mesh(("a",), (ranks,)))
    results: list[torch.Tensor] = [torch.empty(0)] * ranks

    def act(rank: int) -> None:
        communicator = JointCommunicator(table, rank)
        results[rank] = ALGORITHMS[algorithm](
            operands[rank],
            reduce_type,
            ranks,
            rank,
            chunk,
            lambda x, pairs: communicator.start("permute", x, ("a",), pairs),
        )

    threads = [threading.Thread(target=act, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@settings(max_examples=60)
@given(st.data())
def test_they_reduce(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 7))
    size = data.draw(st.integers(1, 2 * ranks + 1) | st.just(257))
    dtype, kind = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(["sum", "max", "min", "prod"]))
    algorithm, chunk = data.draw(st.sampled_from(sorted(ALGORITHMS))), data.draw(st.sampled_from([0, 1, 3, 100]))
    operands = [(torch.arange(size) * (rank + 2) + rank).remainder(3).to(dtype) for rank in range(ranks)]
    given_ = [operand.clone() for operand in operands]
    results = reduced(algorithm, operands, kind, chunk)
    mesh = Mesh(("a",), (ranks,))
    for result, wanted in zip(results, compute("all_reduce", operands, ("a",), (kind,), mesh), strict=True):
        assert torch.equal(result, wanted), (algorithm, ranks, size, kind)
    assert all(torch.equal(x, y) for x, y in zip(operands, given_, strict=True)), "operands stay as they are"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", [3, 4, 6])
def test_every_rank_has_the_same_bits(algorithm: str, ranks: int) -> None:
    operands = [torch.randn(1001, generator=torch.Generator().manual_seed(rank)) for rank in range(ranks)]
    results = reduced(algorithm, operands, "sum", chunk=100)
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], sum(operands))
