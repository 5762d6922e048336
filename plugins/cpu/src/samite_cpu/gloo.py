"""The dialect's collectives over gloo process groups, one for each set of axes that a program uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from samite.errors import MeshError, UnsupportedOp
from samite.hal.driver import Arrived, Communicator, Group, InFlight
from samite.ir.collectives import AUTO
from samite_cpu.algorithms import ALGORITHMS, Pairs
from samite_cpu.background import Background
from samite_cpu.stacking import joined, stacked

__all__ = ["GlooCommunicator"]

LAST_TAG = 2**20  # of messages: more than are ever under way; 0 is that of permutations
FOREVER = 24 * 3600.0  # an engine that watches its ranks ends those that wait for a dead one

_REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
# Reductions of bool as ones of 0 and 1 in uint8: sum is `or`, prod is `and`.
_BOOL_OPS = {"sum": "max", "prod": "min", "max": "max", "min": "min"}
# What gloo has no kernels for is reduced in a type that holds all of its values.
_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
_REDUCED_BY_GLOO = frozenset(
    (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int8, torch.uint8),
    )
)


@dataclass(frozen=True)
class _Works(InFlight):
    """What gloo has under way, and how its result is made of what that leaves. gloo keeps the tensors alive."""

    works: Sequence[Any]
    finish: Callable[[], torch.Tensor]
    timeout: timedelta | None = None  # sends and receives are not told theirs before

    def wait(self) -> torch.Tensor:
        for work in self.works:
            work.wait() if self.timeout is None else work.wait(self.timeout)
        return self.finish()


class GlooCommunicator(Communicator):
    """One rank's collectives. Groups are made at their first use, which every rank of a program reaches in one order.

    `group.options`: `timeout_s` that a collective waits for its peers (default: a day), `interface_address` to bind to
    (default: as GLOO_SOCKET_IFNAME says), `namespace` of this group in a store that it shares with others.
    """

    def __init__(self, group: Group) -> None:
        self._mesh, self._rank = group.mesh, group.rank
        self._timeout = timedelta(seconds=float(group.options.get("timeout_s", FOREVER)))
        self._interface: str | None = group.options.get("interface_address")
        self._groups: dict[tuple[str, ...], Any] = {}  # ProcessGroupGloo, whose stubs lack its collectives
        self._store: dist.Store | None = None
        self._background, self._tag = Background("samite-gloo"), 0
        if group.mesh.size > 1:
            host, _, port = group.address.rpartition(":")
            store = dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=60))
            self._store = dist.PrefixStore(f"{group.options.get('namespace', 'samite')}/gloo/{group.generation}", store)

    def all_reduce(
        self, x: torch.Tensor, axes: Sequence[str], reduce_type: str, algorithm: str = AUTO, chunk_bytes: int = 0
    ) -> torch.Tensor:
        if algorithm == AUTO or self._parts(axes) == 1 or not x.numel():
            return self._all_reduce(x, axes, reduce_type).wait()
        return self._by_messages(x, axes, reduce_type, algorithm, chunk_bytes)()

    def all_gather(self, x: torch.Tensor, axes: Sequence[str], dim: int) -> torch.Tensor:
        return self._all_gather(x, axes, dim).wait()

    def reduce_scatter(self, x: torch.Tensor, axes: Sequence[str], dim: int, reduce_type: str) -> torch.Tensor:
        return self._reduce_scatter(x, axes, dim, reduce_type).wait()

    def all_to_all(self, x: torch.Tensor, axes: Sequence[str], split_dim: int, concat_dim: int) -> torch.Tensor:
        return self._all_to_all(x, axes, split_dim, concat_dim).wait()

    def permute(self, x: torch.Tensor, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
        return self._permute(x, axes, pairs).wait()

    def start(self, verb: str, x: torch.Tensor, axes: Sequence[str], *arguments: Any) -> InFlight:
        """On gloo's own thread: the collectives of a group take place in the order in which they were started. Those
        by an algorithm of ours have a thread, too."""
        return getattr(self, f"_{verb}")(x, axes, *arguments)

    def _all_reduce(
        self, x: torch.Tensor, axes: Sequence[str], reduce_type: str, algorithm: str = AUTO, chunk_bytes: int = 0
    ) -> InFlight:
        if self._parts(axes) == 1 or not x.numel():
            return Arrived(x)
        if algorithm != AUTO:
            return self._background.start(self._by_messages(x, axes, reduce_type, algorithm, chunk_bytes))
        given, x, reduce_type = x.dtype, *_reducible(x, reduce_type)
        # gloo reduces in place, and `x` may be read again.
        total = x.clone(memory_format=torch.contiguous_format)
        work = self._group(axes).allreduce([total], self._timed(c10d.AllreduceOptions(), reduce_type))
        return _Works([work], lambda: total.to(given))

    def _all_gather(self, x: torch.Tensor, axes: Sequence[str], dim: int) -> InFlight:
        parts = self._parts(axes)
        if parts == 1:
            return Arrived(x)
        works, gathered = list[Any](), x.new_empty((parts, *x.shape))
        if x.numel():
            options = self._timed(c10d.AllgatherOptions())
            works.append(self._group(axes)._allgather_base(_bytes(gathered), _bytes(x.contiguous()), options))
        return _Works(works, lambda: joined(gathered, dim))

    def _reduce_scatter(self, x: torch.Tensor, axes: Sequence[str], dim: int, reduce_type: str) -> InFlight:
        parts = self._parts(axes)
        if parts == 1:
            return Arrived(x)
        given, x, reduce_type = x.dtype, *_reducible(x, reduce_type)
        chunks = stacked(x, dim, parts)
        works, mine = list[Any](), x.new_empty(chunks.shape[1:])
        if x.numel():
            options = self._timed(c10d.ReduceScatterOptions(), reduce_type)
            works.append(self._group(axes)._reduce_scatter_base(mine.view(-1), chunks.view(-1), options))
        return _Works(works, lambda: mine.to(given))

    def _all_to_all(self, x: torch.Tensor, axes: Sequence[str], split_dim: int, concat_dim: int) -> InFlight:
        parts = self._parts(axes)
        if parts == 1:
            return Arrived(x)
        chunks = stacked(x, split_dim, parts)
        works, received = list[Any](), torch.empty_like(chunks)
        if x.numel():
            options = self._timed(c10d.AllToAllOptions())
            works.append(self._group(axes).alltoall_base(_bytes(received), _bytes(chunks), [], [], options))
        return _Works(works, lambda: joined(received, concat_dim))

    def _by_messages(
        self, x: torch.Tensor, axes: Sequence[str], reduce_type: str, algorithm: str, chunk_bytes: int
    ) -> Callable[[], torch.Tensor]:
        """An all_reduce by one of `ALGORITHMS`, not yet begun. Its messages have a tag of their own, which every rank
        counts alike."""
        shape, given, x, reduce_type = x.shape, x.dtype, *_reducible(x, reduce_type)
        flat, ranks, group = x.reshape(-1), self._parts(axes), self._group(axes)
        mine, chunk = group.rank(), chunk_bytes // x.itemsize
        self._tag = self._tag % LAST_TAG + 1

        def send(part: torch.Tensor, pairs: Pairs, tag: int = self._tag) -> InFlight:
            return self._sent(group, part, pairs, torch.empty_like(part), tag)

        return lambda: ALGORITHMS[algorithm](flat, reduce_type, ranks, mine, chunk, send).to(given).view(shape)

    def _permute(self, x: torch.Tensor, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> InFlight:
        received = torch.zeros_like(x, memory_format=torch.contiguous_format)
        if not x.numel() or self._parts(axes) == 1:
            return Arrived(x if pairs else received)
        return self._sent(self._group(axes), x.contiguous(), pairs, received, 0)

    def _sent(self, group: Any, x: torch.Tensor, pairs: Pairs, received: torch.Tensor, tag: int) -> InFlight:
        """`x` on its way to the targets of this rank, and `received` what its source sends, if it has one."""
        mine, sent, works = group.rank(), _bytes(x), list[Any]()
        for source, target in pairs:
            if source == target == mine:
                _bytes(received).copy_(sent)
            elif source == mine:
                works.append(group.send([sent], target, tag))
            elif target == mine:
                works.append(group.recv([_bytes(received)], source, tag))
        return _Works(works, lambda: received, self._timeout)

    def barrier(self) -> None:
        if self._mesh.size > 1:
            self._group(self._mesh.axes).barrier(self._timed(c10d.BarrierOptions())).wait()

    def close(self) -> None:
        self._background.close()
        self._groups.clear()
        self._store = None

    def _parts(self, axes: Sequence[str]) -> int:
        return prod(self._mesh[axis] for axis in axes)

    def _timed(self, options: Any, reduce_type: str = "") -> Any:
        options.timeout = self._timeout
        if reduce_type:
            options.reduceOp = _REDUCE_OPS[reduce_type]
        return options

    def _group(self, axes: Sequence[str]) -> Any:
        """The group of this rank's peers along `axes`, in their order."""
        key = tuple(axes)
        if key not in self._groups:
            if self._store is None:
                raise MeshError("this communicator is closed")
            peers = self._mesh.peers(self._rank, key)
            gloo: Any = c10d.ProcessGroupGloo
            options = gloo._Options()
            options._timeout = self._timeout
            options._threads = 1  # a program's collectives come one after the other
            at = self._interface
            options._devices = [gloo.create_device(hostname=at) if at else gloo.create_default_device()]
            store = dist.PrefixStore(f"{'.'.join(key)}/{peers[0]}", self._store)
            self._groups[key] = gloo(store, peers.index(self._rank), len(peers), options)
        return self._groups[key]


def _reducible(x: torch.Tensor, reduce_type: str) -> tuple[torch.Tensor, str]:
    """The same reduction in a dtype that gloo has."""
    if x.dtype == torch.bool:
        return x.view(torch.uint8), _BOOL_OPS[reduce_type]
    if x.dtype in _WIDER:
        return x.to(_WIDER[x.dtype]), reduce_type
    if x.dtype not in _REDUCED_BY_GLOO:
        raise UnsupportedOp(f"gloo does not reduce {x.dtype}", help="reduce in float32 and convert the result")
    return x, reduce_type


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as bytes, so that one route moves every dtype."""
    return x.view(-1).view(torch.uint8)
