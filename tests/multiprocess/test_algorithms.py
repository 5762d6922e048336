"""All-reduce by each of the backend's algorithms, at once and started, over sockets and through shared memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from programs import argument, collective, program, split
from samite.hal.program import Result
from samite.mesh import Mesh
from samite.runtime.local import LocalWorkers

ALGORITHMS = ("auto", "direct", "ring", "tree")
KINDS = ("sum", "max", "min", "prod")
LARGE, CHUNK = 100_003, 1000
"""Elements that no number of ranks divides, and bytes of a piece."""


@pytest.mark.parametrize("ranks, shared_memory", [(3, False), (4, True)], ids=["3, gloo", "4, shared memory"])
def test_all_algorithms_give_one_result(start: Callable[..., LocalWorkers], ranks: int, shared_memory: bool) -> None:
    mesh = Mesh(("d",), (ranks,))
    sizes = [*range(2 * ranks + 2), 1003]

    def reductions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        for algorithm in ALGORITHMS:
            reduced = [collective.all_reduce(x[:size], "d", kind, algorithm, CHUNK) for kind in KINDS for size in sizes]
            reduced.append(collective.all_reduce(x, "d", "sum", algorithm, CHUNK))
            started = [
                collective.start(x[:size], "all_reduce", "d", [], [], "sum", ranks, n, [], -1, algorithm, CHUNK)
                for n, size in enumerate(sizes)
            ]
            # Others come between, and they are waited for in the other order.
            reduced.append(collective.all_gather(x[:2], "d", 0, ranks))
            reduced += [collective.wait(one) for one in reversed(started)]
            results.append(torch.cat(reduced))
        return tuple(results)

    length = 4 * sum(sizes) + LARGE + 2 * ranks + sum(sizes)
    results = [Result(name, "float64", split(length)) for name in ALGORITHMS]
    step = program(reductions, [argument("x", split(ranks * LARGE, d=0), dtype="float64")], results, mesh)
    workers = start(mesh, shared_memory=shared_memory)
    x = torch.randint(1, 4, (ranks, LARGE), generator=torch.Generator().manual_seed(0)).double()
    outputs = list(range(len(ALGORITHMS)))
    workers.run(workers.load(step, {}), [x.flatten()], outputs).result()
    auto, *others = map(workers.read, outputs)
    assert torch.equal(auto[: sum(sizes)], torch.cat([x[:, :size].sum(0) for size in sizes]))
    for name, other in zip(ALGORITHMS[1:], others, strict=True):
        assert torch.equal(other, auto), name
