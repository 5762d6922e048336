"""The dialect's collectives among ranks of one host, through memory that all of them map.

Collectives that are started take their turn on a thread of their own; while that is at work the others queue behind, so
that all ranks have one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from samite.hal.driver import Arrived, Communicator, Group, InFlight
from samite.ir.collectives import AUTO
from samite.runtime.interpreter import REDUCE
from samite_cpu.algorithms import ALGORITHMS, Pairs
from samite_cpu.background import Background
from samite_cpu.rounds import Rounds
from samite_cpu.stacking import joined, stacked

__all__ = ["HostCommunicator"]

TWO_PHASES = 2**16  # bytes of an all-reduce above which more than two ranks share the work of reducing


class HostCommunicator(Communicator):
    """One rank's collectives. Reductions are in the order of the group, so every rank has the same bits.

    `group.options`: `shared_memory`, a segment of zeros that all ranks map; `timeout_s` to wait for a peer (default:
    for ever, for engines that watch their ranks). OutOfMemory if the segment cannot hold what the mesh needs.
    """

    def __init__(self, group: Group) -> None:
        self._mesh, self._rank = group.mesh, group.rank
        timeout = float(group.options.get("timeout_s", "inf"))
        self._rounds = Rounds(group.options["shared_memory"], group.rank, group.mesh.size, timeout)
        self._peers: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._background = Background("samite-host")
        self._whole = group
        self._network: Communicator | None = None

    def all_reduce(
        self, x: torch.Tensor, axes: Sequence[str], reduce_type: str, algorithm: str = AUTO, chunk_bytes: int = 0
    ) -> torch.Tensor:
        return self._now(self._all_reduce, x, axes, reduce_type, algorithm, chunk_bytes)

    def all_gather(self, x: torch.Tensor, axes: Sequence[str], dim: int) -> torch.Tensor:
        return self._now(self._all_gather, x, axes, dim)

    def reduce_scatter(self, x: torch.Tensor, axes: Sequence[str], dim: int, reduce_type: str) -> torch.Tensor:
        return self._now(self._reduce_scatter, x, axes, dim, reduce_type)

    def all_to_all(self, x: torch.Tensor, axes: Sequence[str], split_dim: int, concat_dim: int) -> torch.Tensor:
        return self._now(self._all_to_all, x, axes, split_dim, concat_dim)

    def permute(self, x: torch.Tensor, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
        return self._now(self._permute, x, axes, pairs)

    def start(self, verb: str, x: torch.Tensor, axes: Sequence[str], *arguments: Any) -> InFlight:
        return self._background.start(partial(getattr(self, f"_{verb}"), x, axes, *arguments))

    def transfer(self, x: torch.Tensor, axis: str, source: int, target: int) -> InFlight:
        """By gloo: rounds are for ranks that all do the same."""
        if self._network is None:
            from samite_cpu.gloo import GlooCommunicator

            self._network = GlooCommunicator(self._whole)
        return self._network.transfer(x, axis, source, target)

    def barrier(self) -> None:
        self._now(self._barrier)

    def close(self) -> None:
        self._background.close()
        self._rounds.close()
        if self._network is not None:
            self._network.close()

    def _now(self, work: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
        """Here, unless others of the program are under way, behind which it comes on every rank."""
        if self._background.busy:
            return self._background.start(partial(work, *arguments)).wait()
        return work(*arguments)

    def _all_reduce(
        self, x: torch.Tensor, axes: Sequence[str], reduce_type: str, algorithm: str = AUTO, chunk_bytes: int = 0
    ) -> torch.Tensor:
        group = self._group(axes)
        if len(group) == 1 or not x.numel():
            return x
        if algorithm in ("ring", "tree"):
            mine, chunk = group.index(self._rank), chunk_bytes // x.itemsize
            flat = x.contiguous().view(-1)

            def send(part: torch.Tensor, pairs: Pairs) -> InFlight:
                return Arrived(self._permute(part, axes, pairs))

            return ALGORITHMS[algorithm](flat, reduce_type, len(group), mine, chunk, send).view(x.shape)
        if algorithm == AUTO and len(group) > 2 and x.nbytes > TWO_PHASES:
            return self._all_reduce_in_two(x, axes, reduce_type)
        flat = x.contiguous().view(1, -1)
        total = torch.empty_like(flat)
        self._rounds.exchange(flat, group, lambda parts, start, end: _reduce(parts, reduce_type, total[:, start:end]))
        return total.view(x.shape)

    def _all_reduce_in_two(self, x: torch.Tensor, axes: Sequence[str], reduce_type: str) -> torch.Tensor:
        """Each rank reduces its part for all."""
        parts = len(self._group(axes))
        size = -(-x.numel() // parts)
        padded = x.new_zeros(parts * size)
        padded[: x.numel()] = x.reshape(-1)
        mine = self._reduce_scatter(padded, axes, 0, reduce_type)
        return self._all_gather(mine, axes, 0)[: x.numel()].view(x.shape)

    def _all_gather(self, x: torch.Tensor, axes: Sequence[str], dim: int) -> torch.Tensor:
        group = self._group(axes)
        if len(group) == 1:
            return x
        gathered = x.new_empty((len(group), *x.shape))
        rows = gathered.view(len(group), -1)

        def consume(parts: list[torch.Tensor], start: int, end: int) -> None:
            for row, part in zip(rows, parts, strict=True):
                row[start:end].copy_(part[0])

        self._rounds.exchange(x.contiguous().view(1, -1), group, consume)
        return joined(gathered, dim)

    def _reduce_scatter(self, x: torch.Tensor, axes: Sequence[str], dim: int, reduce_type: str) -> torch.Tensor:
        group = self._group(axes)
        if len(group) == 1:
            return x
        mine, chunks = group.index(self._rank), stacked(x, dim, len(group))
        total = x.new_empty(chunks.shape[1:])
        row = total.view(-1)

        def consume(parts: list[torch.Tensor], start: int, end: int) -> None:
            _reduce([part[mine] for part in parts], reduce_type, row[start:end])

        self._rounds.exchange(chunks.view(len(group), -1), group, consume)
        return total

    def _all_to_all(self, x: torch.Tensor, axes: Sequence[str], split_dim: int, concat_dim: int) -> torch.Tensor:
        group = self._group(axes)
        if len(group) == 1:
            return x
        mine, chunks = group.index(self._rank), stacked(x, split_dim, len(group))
        received = torch.empty_like(chunks)
        rows = received.view(len(group), -1)

        def consume(parts: list[torch.Tensor], start: int, end: int) -> None:
            for row, part in zip(rows, parts, strict=True):
                row[start:end].copy_(part[mine])

        self._rounds.exchange(chunks.view(len(group), -1), group, consume)
        return joined(received, concat_dim)

    def _permute(self, x: torch.Tensor, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
        group = self._group(axes)
        received = torch.zeros_like(x, memory_format=torch.contiguous_format)
        row = received.view(-1)
        sources = [source for source, target in pairs if group[target] == self._rank]

        def consume(parts: list[torch.Tensor], start: int, end: int) -> None:
            for source in sources:
                row[start:end].copy_(parts[source][0])

        self._rounds.exchange(x.contiguous().view(1, -1), group, consume)
        return received

    def _barrier(self) -> torch.Tensor:
        nothing = torch.zeros(1, 1)
        self._rounds.exchange(nothing, self._group(self._mesh.axes), lambda parts, start, end: None)
        return nothing

    def _group(self, axes: Sequence[str]) -> tuple[int, ...]:
        """This rank's peers along `axes`, in their order."""
        key = tuple(axes)
        if key not in self._peers:
            self._peers[key] = self._mesh.peers(self._rank, key)
        return self._peers[key]


def _reduce(parts: Sequence[torch.Tensor], reduce_type: str, total: torch.Tensor) -> None:
    reduce = REDUCE[reduce_type]
    reduce(parts[0], parts[1], out=total)
    for part in parts[2:]:
        reduce(total, part, out=total)
