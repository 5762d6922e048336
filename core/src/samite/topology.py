"""Topology: what a device and the links between ranks can do, as plain numbers for cost models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from samite.errors import ConfigError, nearest

__all__ = ["DeviceSpec", "Link", "Topology"]


@dataclass(frozen=True)
class Link:
    """What one rank gets along a mesh axis: `bandwidth` in bytes/s received, `latency` in seconds a message.

    The defaults are those of processes of one host that exchange through shared memory: every byte is copied twice,
    through caches that do not hold it, and a message wakes up its receiver.
    """

    bandwidth: float = 4e9
    latency: float = 50e-6

    def __post_init__(self) -> None:
        _require_positive(self.bandwidth, "a link's bandwidth (bytes/s)")
        _require_positive(self.latency, "a link's latency (seconds)", or_zero=True)


@dataclass(frozen=True)
class DeviceSpec:
    """One device: `memory` in bytes (0 if not known), peak `flops` in operations/s by dtype, `bandwidth` in bytes/s.

    The bandwidth is that of its memory. The defaults are of the order of one core of a server with 256-bit vectors.
    """

    kind: str = "cpu"
    memory: int = 0
    flops: tuple[tuple[str, float], ...] = (("float32", 4e10), ("float64", 2e10))
    bandwidth: float = 1e10

    def __post_init__(self) -> None:
        _require_positive(self.memory, "a device's memory (bytes)", or_zero=True)
        _require_positive(self.bandwidth, "a device's bandwidth (bytes/s)")
        if not self.flops:
            raise ConfigError("a device has no flops", help='give operations/s by dtype, like {"float32": 4e10}')
        for dtype, rate in self.flops:
            _require_positive(rate, f"a device's flops in {dtype}")

    def rate(self, dtype: str) -> float:
        """Peak operations/s in `dtype` (torch's name). The slowest listed stands for a dtype that is not."""
        rates = dict(self.flops)
        return rates[dtype] if dtype in rates else min(rates.values())


@dataclass(frozen=True)
class Topology:
    """The device of every rank and the link along each mesh axis; `default` serves axes that have none of their own."""

    device: DeviceSpec = field(default_factory=DeviceSpec)
    links: tuple[tuple[str, Link], ...] = ()
    default: Link = field(default_factory=Link)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Topology:
        """From nested dicts as a TOML or JSON file has them; what is left out has its default.

            {"device": {"kind": "gpu", "flops": {"bfloat16": 9.9e14}}, "links": {"tp": {"bandwidth": 4e11}}}

        Raises ConfigError for an unknown key, a value that is not a number, or a number out of range.
        """
        _require_keys(data, ("device", "links", "default"), "topology")
        device = dict(_table(data.get("device", {}), "device"))
        _require_keys(device, ("kind", "memory", "flops", "bandwidth"), "device")
        if "flops" in device:
            device["flops"] = tuple(sorted(_table(device["flops"], "device.flops").items()))
        links = {axis: _link(link, f"links.{axis}") for axis, link in _table(data.get("links", {}), "links").items()}
        return cls(DeviceSpec(**device), tuple(links.items()), _link(data.get("default", {}), "default"))

    def link(self, axis: str) -> Link:
        """The link along a mesh axis."""
        return dict(self.links).get(axis, self.default)

    def cost(self, nbytes: float, axis: str, messages: int = 1) -> float:
        """Seconds until each rank has received `nbytes` along `axis`, in `messages` messages one after another."""
        link = self.link(axis)
        return messages * link.latency + nbytes / link.bandwidth


def _link(data: Any, where: str) -> Link:
    table = _table(data, where)
    _require_keys(table, ("bandwidth", "latency"), where)
    return Link(**table)


def _table(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} is {data!r}, not a table", help="give keys and values")
    return cast("Mapping[str, Any]", data)


def _require_keys(data: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in data:
        if key not in known:
            raise ConfigError(f'{where} has no key "{key}"', help=nearest(str(key), known))


def _require_positive(value: object, what: str, *, or_zero: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 or (or_zero and value == 0)):
        raise ConfigError(f"{what} is {value!r}", help=f"give a number above 0{', or 0' if or_zero else ''}")
