"""Host memory as shared segments, so that a buffer can be handed to another process without a copy."""

from __future__ import annotations

from samite.hal.driver import Device, Happened
from samite.hal.memory import Allocation
from samite.hal.shared import Segment

__all__ = ["MECHANISM", "SharedMemory"]

MECHANISM = "shared memory (memfd)"


class SharedMemory:
    """One segment an allocation, page aligned; `handle` is the `Segment`, whose descriptor may be sent elsewhere."""

    mechanism = MECHANISM

    def __init__(self, device: Device) -> None:
        self.device = device

    def alloc(self, nbytes: int) -> Allocation:
        segment = Segment.create(nbytes)
        try:
            segment.reserve(0, nbytes)
        except BaseException:
            segment.close()
            raise
        return Allocation(self.device, nbytes, segment.bytes[:nbytes], handle=segment)

    def free(self, allocation: Allocation) -> None:
        allocation.handle.close()

    def copy(self, source: Allocation, target: Allocation) -> Happened:
        assert source.bytes is not None, "host memory is addressable"
        assert target.bytes is not None, "host memory is addressable"
        target.bytes.copy_(source.bytes)
        return Happened()

    def bandwidth(self, other: Device) -> float:
        # Between two nodes of one host as well: the slower of the two memories is what a copy sees.
        return min(self.device.bandwidth, other.bandwidth) if other.kind == self.device.kind else 0.0
