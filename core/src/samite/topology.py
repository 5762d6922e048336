"""Topology: what devices and links can do, as plain numbers for cost models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samite.errors import ConfigError, MeshError, nearest

__all__ = ["DeviceSpec", "Link", "Topology"]


@dataclass(frozen=True)
class Link:
    """What one rank gets along one mesh axis: `bandwidth` in bytes/s received, `latency` in seconds a message."""

    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        if not self.bandwidth > 0 or not self.latency >= 0:
            raise ConfigError(f"{self} is no link", help="bandwidth is above 0 bytes/s, latency is 0 s or more")


@dataclass(frozen=True)
class DeviceSpec:
    """One device: `memory` in bytes (0: no limit known), peak `flops` in operations/s as (dtype, rate) pairs, and the
    `bandwidth` of its memory in bytes/s. Defaults describe one core of a common server."""

    kind: str = "cpu"
    memory: int = 0
    flops: tuple[tuple[str, float], ...] = (("float64", 2e10), ("float32", 4e10), ("bfloat16", 2e10))
    bandwidth: float = 1e10

    def rate(self, dtype: str) -> float:
        """Peak operations/s in a dtype; one that is not listed counts as float32, else as the slowest listed."""
        rates = dict(self.flops)
        return rates.get(dtype) or rates.get("float32") or min(rates.values())


# Shared memory between processes of one host: a message is two copies through a cache-cold buffer and a wake-up.
_SHARED_MEMORY = Link(bandwidth=4e9, latency=5e-5)


@dataclass(frozen=True)
class Topology:
    """A device and the link along each mesh axis; `default` serves the axes that have none of their own."""

    device: DeviceSpec = field(default_factory=DeviceSpec)
    links: tuple[tuple[str, Link], ...] = ()
    default: Link = _SHARED_MEMORY

    def link(self, axis: str) -> Link:
        """The link along a mesh axis."""
        return dict(self.links).get(axis, self.default)

    def cost(self, nbytes: float, axis: str, messages: int = 1) -> float:
        """Seconds until each rank has received `nbytes` along `axis` in that many messages, one after another."""
        link = self.link(axis)
        return messages * link.latency + nbytes / link.bandwidth
