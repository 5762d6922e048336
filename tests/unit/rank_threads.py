"""Ranks as threads of one process, whose collectives are computed together: eager tensors without processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from samite.eager.rank import Rank
from samite.errors import CollectiveMismatch
from samite.hal.driver import Communicator
from samite.mesh import Mesh
from samite.runtime.joint import compute
from samite.tensor import Tensor
from samite.tensor.homes import standing

PATIENCE = 10.0


class Table:
    """Where the ranks of a mesh put what they have, and find what the others have."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.barrier = threading.Barrier(mesh.size, timeout=PATIENCE)
        self.said: list[Any] = [None] * mesh.size

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.said[rank] = value
        self.barrier.wait()
        said = list(self.said)
        self.barrier.wait()
        self.said[rank] = None  # what a rank holds alone it may change
        return said


class JointCommunicator(Communicator):
    """Notes its collectives in `asked`."""

    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank, self.asked = table, rank, list[str]()

    def all_reduce(self, x: torch.Tensor, axes: Sequence[str], reduce_type: str) -> torch.Tensor:
        return self._call("all_reduce", x, axes, reduce_type)

    def all_gather(self, x: torch.Tensor, axes: Sequence[str], dim: int) -> torch.Tensor:
        return self._call("all_gather", x, axes, dim)

    def reduce_scatter(self, x: torch.Tensor, axes: Sequence[str], dim: int, reduce_type: str) -> torch.Tensor:
        return self._call("reduce_scatter", x, axes, dim, reduce_type)

    def all_to_all(self, x: torch.Tensor, axes: Sequence[str], split_dim: int, concat_dim: int) -> torch.Tensor:
        return self._call("all_to_all", x, axes, split_dim, concat_dim)

    def permute(self, x: torch.Tensor, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
        return self._call("permute", x, axes, tuple(pairs))

    def barrier(self) -> None:
        self.table.barrier.wait()

    def close(self) -> None:
        pass

    def _call(self, verb: str, x: torch.Tensor, axes: Sequence[str], *arguments: Any) -> torch.Tensor:
        self.asked.append(verb)
        # A copy, since ranks share no memory: one may write to its tensor while another still reduces.
        said = self.table.exchange(self.rank, ((verb, tuple(axes), arguments), x.clone()))
        first = said[0][0]
        for rank, (other, _) in enumerate(said):
            assert other == first, f"rank 0 asks for {first}, rank {rank} for {other}"
        with torch.no_grad():
            return compute(verb, [given for _, given in said], axes, arguments, self.table.mesh)[self.rank].clone()


def on_ranks(mesh: Mesh, act: Callable[[], Any], *, debug: bool = False) -> list[Any]:
    """What `act` gives on every rank. The first error of a rank ends all, and is raised."""
    table, agreements = Table(mesh), Table(mesh)
    results: list[Any] = [None] * mesh.size
    errors: list[BaseException] = []

    def run(number: int) -> None:
        def agree(what: str, values: Sequence[tuple[str, int]]) -> None:
            said = agreements.exchange(number, (what, tuple(values)))
            if any(other != said[0] for other in said):
                raise CollectiveMismatch(f"rank {number}: {said}", rank=number)

        rank = Rank(mesh, number, JointCommunicator(table, number), agree, debug=debug)
        try:
            with standing(rank):
                results[number] = act()
        except BaseException as error:
            errors.append(error)
            table.barrier.abort()
            agreements.barrier.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(mesh.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    assert not errors, "the ranks went apart"
    return results


def asked_for() -> list[str]:
    """The collectives that this rank has asked for so far."""
    from samite.tensor import homes

    (rank,) = homes._here.ranks.values()
    return rank.communicator.asked


def mesh_of(**axes: int) -> Mesh:
    return Mesh(tuple(axes), tuple(axes.values()))


def whole(x: Any) -> Any:
    """The global value of a result."""
    if isinstance(x, Tensor):
        return x.full_tensor().detach().clone()
    if isinstance(x, (list, tuple)):
        return [whole(item) for item in x]
    return x


def check(
    act: Callable[..., Any],
    operands: Mapping[str, torch.Tensor],
    placements: Mapping[str, Mapping[str, object]],
    mesh: Mesh,
    **tolerances: Any,
) -> list[list[str]]:
    """`act(**operands)` on the ranks of a mesh gives what it gives on one device, values and gradients.

    An operand of float dtype is a leaf that requires a gradient. What `act` returns may hold tensors; those that depend
    on the operands are differentiated with weights of their own. Gives the collectives of each rank, reads left out.
    """
    import samite

    def run(make: Callable[[str, torch.Tensor], torch.Tensor]) -> tuple[list[Any], list[Any], list[str]]:
        leaves = {name: make(name, value) for name, value in operands.items()}
        results = act(**leaves)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        weights = torch.Generator().manual_seed(1)  # torch's own is of the process, and ranks are threads here
        for result in results:
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.backward(torch.randn(result.shape, dtype=result.dtype, generator=weights), retain_graph=True)
        count = list(asked_for()) if any(isinstance(x, Tensor) for x in leaves.values()) else []
        return whole(results), [whole(x.grad) for x in leaves.values() if x.is_floating_point()], count

    def plain(name: str, value: torch.Tensor) -> torch.Tensor:
        return value.clone().requires_grad_(value.is_floating_point())

    def distributed(name: str, value: torch.Tensor) -> torch.Tensor:
        return samite.tensor(value, mesh, placements.get(name, {}), requires_grad=value.is_floating_point())

    expected, gradients, _ = run(plain)
    expected = [x.detach() if isinstance(x, torch.Tensor) else x for x in expected]
    collectives: list[list[str]] = []
    for got, got_gradients, count in on_ranks(mesh, lambda: run(distributed)):
        torch.testing.assert_close(got, expected, **tolerances)
        torch.testing.assert_close(got_gradients, gradients, **tolerances)
        collectives.append(count)
    return collectives
