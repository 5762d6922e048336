"""Unified memory: a logical buffer whose replicas on devices carry versions.

A replica is stale when its version is older than the buffer's. `Buffer.on` brings the replica of a device up to date
before it is read or written, by the cheapest path that the allocators offer; a write makes every other replica stale.
Buffers are moved whole. A buffer belongs to one thread at a time.
"""

from __future__ import annotations

import heapq
import math
import weakref
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from samite.errors import InputError
from samite.hal.driver import Device, Event

__all__ = ["Access", "Allocation", "Allocator", "Buffer"]

Access = Literal["read", "write"]


@dataclass(frozen=True, eq=False)
class Allocation:
    """Memory on one device. `bytes` is the same memory as a 1-d uint8 tensor, if torch can address it (host memory
    always has it); `handle` is the allocator's own (a pointer, a file descriptor)."""

    device: Device
    nbytes: int
    bytes: torch.Tensor | None = None
    handle: Any = None


class Allocator(Protocol):
    """The memory of one device. Subclass it for the default of `bandwidth`.

    `mechanism` says how others reach the memory: "host memory", "shared memory", "pinned host", "peer".
    """

    device: Device
    mechanism: str

    @abstractmethod
    def alloc(self, nbytes: int) -> Allocation:
        """Memory with arbitrary content, aligned for any dtype. OutOfMemory if there is none."""
        ...

    @abstractmethod
    def free(self, allocation: Allocation) -> None:
        """Gives memory back. What `bytes` shows stays valid until the last tensor over it is gone."""
        ...

    @abstractmethod
    def copy(self, source: Allocation, target: Allocation) -> Event:
        """Starts to copy all of `source`. One of the two is here, the other here too or where `bandwidth` is not 0."""
        ...

    def bandwidth(self, other: Device) -> float:
        """Bytes/s of a direct copy between this device and `other`, either way; 0.0 where there is none.

        Default: to and from host memory only, at the speed of the device's memory.
        """
        return (self.device.bandwidth or 1.0) if other.kind == "cpu" else 0.0


@dataclass
class _Replica:
    memory: Allocation
    version: int
    owned: bool = True  # False: the memory belongs to whoever gave it


class Buffer:
    """A logical tensor (or plain bytes: shape `(nbytes,)`, uint8) with at most one replica on each device.

    `allocators` holds the devices that it may live on and pass through; `home` is where DLPack consumers see it.
    Memory is taken at the first use on a device and given back by `free`, at the latest when the buffer is collected.
    Until the first write the content is arbitrary, but the same everywhere.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        home: Device,
        allocators: Mapping[Device, Allocator],
    ) -> None:
        self.shape, self.dtype, self.home = tuple(shape), dtype, home
        self.nbytes = math.prod(self.shape) * dtype.itemsize
        self.version = 0
        self._allocators = allocators
        self._replicas: dict[Device, _Replica] = {}
        self._check(home)
        self._finalizer = weakref.finalize(self, _free, self._replicas, allocators)
        self._finalizer.atexit = False  # by then a device's runtime may be gone, and its memory with it

    @classmethod
    def adopt(cls, tensor: torch.Tensor, home: Device, allocators: Mapping[Device, Allocator]) -> Buffer:
        """A buffer over the memory of a contiguous tensor on `home`; nothing is copied, and it is never freed here."""
        if not tensor.is_contiguous():
            raise InputError("a buffer's memory is contiguous; this tensor is not", help="pass tensor.contiguous()")
        if (tensor.device.type == "cpu") != (home.kind == "cpu"):
            raise InputError(f"a tensor on {tensor.device} is not on {_name(home)}", help="name the device it is on")
        buffer = cls(tensor.shape, tensor.dtype, home, allocators)
        memory = Allocation(home, buffer.nbytes, tensor.detach().reshape(-1).view(torch.uint8))
        buffer._replicas[home] = _Replica(memory, version=0, owned=False)
        return buffer

    @property
    def replicas(self) -> dict[Device, int]:
        """The version of each replica."""
        return {device: replica.version for device, replica in self._replicas.items()}

    def stale(self, device: Device) -> bool:
        """Whether use on `device` needs a copy (or, before any use, memory)."""
        replica = self._replicas.get(device)
        return replica is None or replica.version < self.version

    def on(self, device: Device, access: Access) -> Allocation:
        """The memory on `device`, up to date. It may be used so until the buffer is next used on another device.

        OutOfMemory and failed copies leave every fresh replica fresh and every content whole.
        """
        self._check(device)
        if not self._replicas:
            self._replicas[device] = _Replica(self._allocators[device].alloc(self.nbytes), self.version)
        if self.stale(device):
            for source, target in self._path(device):
                self._copy(source, target)
        if access == "write":
            self.version += 1
            self._replicas[device].version = self.version
        return self._replicas[device].memory

    def tensor(self, device: Device | None = None, access: Access = "write") -> torch.Tensor:
        """A view of the memory on `device` (default: home), valid as long as `on` says. InputError if torch has none.

        The default counts as a write, since whoever holds the tensor may write to it.
        """
        device = device or self.home
        memory = self.on(device, access)
        if memory.bytes is None:
            raise InputError(
                f"torch cannot address {memory.device.memory_mechanism or 'the memory'} of {_name(device)}",
                help="use the buffer on a device whose memory torch can address, such as cpu:0",
            )
        return memory.bytes.view(self.dtype).view(self.shape)

    def __dlpack__(self, **options: Any) -> Any:
        """For `torch.from_dlpack` and `numpy.from_dlpack`: the memory at home, without a copy; counts as a write."""
        return self.tensor().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self.tensor(access="read").__dlpack_device__()

    def free(self) -> None:
        """Gives all memory back; the content is gone. Tensors made from it keep host memory alive, no other."""
        _free(self._replicas, self._allocators)

    def _check(self, device: Device) -> None:
        if device not in self._allocators:
            known = ", ".join(_name(d) for d in self._allocators) or "none"
            raise InputError(f"no allocator for {_name(device)} (have: {known})", help="load its backend first")

    def _copy(self, source: Device, target: Device) -> None:
        origin = self._replicas[source]
        if target not in self._replicas:
            # Of no version yet: if the copy fails, the memory stays for the next attempt and nobody reads it.
            self._replicas[target] = _Replica(self._allocators[target].alloc(self.nbytes), version=-1)
        replica = self._replicas[target]
        one, other = self._allocators[source], self._allocators[target]
        carrier = one if one.bandwidth(target) >= other.bandwidth(source) else other
        carrier.copy(origin.memory, replica.memory).wait()
        replica.version = origin.version

    def _path(self, target: Device) -> Iterator[tuple[Device, Device]]:
        """The copies that take the newest content to `target` in the least time (Dijkstra from every fresh replica)."""
        before: dict[Device, Device] = {}
        time = {device: 0.0 for device in self._replicas if not self.stale(device)}
        queue = [(0.0, n, device) for n, device in enumerate(time)]
        while queue:
            reached, _, device = heapq.heappop(queue)
            if device == target:
                break
            for n, other in enumerate(self._allocators):
                speed = max(self._allocators[device].bandwidth(other), self._allocators[other].bandwidth(device))
                arrival = reached + self.nbytes / speed if speed > 0 else math.inf
                if arrival < time.get(other, math.inf):
                    time[other], before[other] = arrival, device
                    heapq.heappush(queue, (arrival, n, other))
        hops: list[tuple[Device, Device]] = []
        while target in before:
            hops.append((before[target], target))
            target = before[target]
        if not hops:
            held = ", ".join(_name(d) for d in self._replicas)
            raise InputError(
                f"no path for a buffer from {held} to {_name(target)}", help="load a backend that joins them"
            )
        return reversed(hops)


def _free(replicas: dict[Device, _Replica], allocators: Mapping[Device, Allocator]) -> None:
    while replicas:
        device, replica = replicas.popitem()
        if replica.owned:
            allocators[device].free(replica.memory)


def _name(device: Device) -> str:
    return f"{device.kind}:{device.index}"
