"""The host's memory nodes as devices, with figures measured once a process."""

from __future__ import annotations

import os
import platform
import re
import time
from functools import cache
from pathlib import Path

import torch

from samite.hal.driver import Device
from samite_cpu.allocator import MECHANISM

__all__ = ["host_devices"]

NODES = Path("/sys/devices/system/node")


@cache
def host_devices(nodes: Path = NODES) -> tuple[Device, ...]:
    """One device a NUMA node that has memory, or one for the whole host where the kernel names no nodes."""
    found = {int(path.name.removeprefix("node")): _node_memory(path) for path in sorted(nodes.glob("node[0-9]*"))}
    memories = {node: memory for node, memory in sorted(found.items()) if memory} or {-1: _host_memory()}
    bandwidth, latency = _copy_bandwidth(), _dispatch_latency()
    return tuple(
        Device("cpu", index, platform.machine(), memory, bandwidth, latency, MECHANISM, node)
        for index, (node, memory) in enumerate(memories.items())
    )


def _node_memory(node: Path) -> int:
    """Bytes of memory of a node; 0 for one that has only processors."""
    found = re.search(r"MemTotal:\s+(\d+) kB", (node / "meminfo").read_text())
    return int(found[1]) * 1024 if found else 0


def _host_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _best(action: object, runs: int) -> float:
    """Seconds of the quickest of several calls; a busy machine only ever adds."""
    times: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        action()  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return min(times)


def _copy_bandwidth(nbytes: int = 8 * 2**20) -> float:
    """Bytes/s read and written by a copy of one thread that is too large for the caches nearest to the core."""
    source, target = torch.zeros(nbytes, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8)
    return 2 * nbytes / _best(lambda: target.copy_(source), runs=3)


def _dispatch_latency() -> float:
    """Seconds that an op on one element takes."""
    x = torch.zeros(1)
    return _best(lambda: torch.neg(x), runs=100)
