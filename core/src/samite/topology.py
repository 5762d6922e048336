"""Topology: what a device and the links between ranks can do, as plain numbers for cost models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, cast

from samite.errors import ConfigError, nearest

__all__ = ["DeviceSpec", "Link", "Topology"]


@dataclass(frozen=True)
class Link:
    """What one rank gets along a mesh axis: `bandwidth` in bytes/s received, `latency` in seconds a message. `times`
    are measured ones, as (bytes, seconds): between them times lie on straight lines, beyond them the bandwidth holds.

    The defaults are those of processes of one host that exchange through shared memory: every byte is copied twice,
    through caches that do not hold it, and a message wakes up its receiver.
    """

    bandwidth: float = 4e9
    latency: float = 50e-6
    times: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        _require_positive(self.bandwidth, "a link's bandwidth (bytes/s)")
        _require_positive(self.latency, "a link's latency (seconds)", or_zero=True)
        for nbytes, seconds in self.times:
            _require_positive(nbytes, "the bytes of a link's time")
            _require_positive(seconds, "a link's time (seconds)")
        if any(one[0] >= other[0] or one[1] > other[1] for one, other in pairwise(self.times)):
            raise ConfigError("a link's times do not grow", help="give [bytes, seconds] by ascending bytes")

    def seconds(self, nbytes: float) -> float:
        """Until one message of so many bytes has arrived."""
        points = ((0.0, self.latency), *self.times)
        for (less, before), (more, after) in pairwise(points):
            if nbytes <= more:
                return before + (after - before) * (nbytes - less) / (more - less)
        return points[-1][1] + (nbytes - points[-1][0]) / self.bandwidth


@dataclass(frozen=True)
class DeviceSpec:
    """One device: `memory` in bytes (0 if not known), peak `flops` in operations/s by dtype, `bandwidth` in bytes/s.

    The bandwidth is that of its memory; `latency` is the seconds that it takes to start an op. The defaults are of the
    order of one core of a server with 256-bit vectors, and of torch's dispatcher.
    """

    kind: str = "cpu"
    memory: int = 0
    flops: tuple[tuple[str, float], ...] = (("float32", 4e10), ("float64", 2e10))
    bandwidth: float = 1e10
    latency: float = 5e-6

    def __post_init__(self) -> None:
        _require_positive(self.memory, "a device's memory (bytes)", or_zero=True)
        _require_positive(self.bandwidth, "a device's bandwidth (bytes/s)")
        _require_positive(self.latency, "a device's latency (seconds)", or_zero=True)
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

        A link may have `times`, as [[bytes, seconds], ...].

        Raises ConfigError for an unknown key, a value that is not a number, or a number out of range.
        """
        _require_keys(data, ("device", "links", "default"), "topology")
        device = dict(_table(data.get("device", {}), "device"))
        _require_keys(device, ("kind", "memory", "flops", "bandwidth", "latency"), "device")
        if "flops" in device:
            device["flops"] = tuple(sorted(_table(device["flops"], "device.flops").items()))
        links = {axis: _link(link, f"links.{axis}") for axis, link in _table(data.get("links", {}), "links").items()}
        return cls(DeviceSpec(**device), tuple(links.items()), _link(data.get("default", {}), "default"))

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` takes."""
        device = asdict(self.device) | {"flops": dict(self.device.flops)}
        return {"device": device, "links": {a: asdict(x) for a, x in self.links}, "default": asdict(self.default)}

    def link(self, axis: str) -> Link:
        """The link along a mesh axis."""
        return dict(self.links).get(axis, self.default)

    def cost(self, nbytes: float, axis: str, messages: int = 1) -> float:
        """Seconds until each rank has received `nbytes` along `axis`, in `messages` messages one after another."""
        link = self.link(axis)
        return (messages - 1) * link.latency + link.seconds(nbytes)


def _link(data: Any, where: str) -> Link:
    table = _table(data, where)
    _require_keys(table, ("bandwidth", "latency", "times"), where)
    try:
        times = tuple((nbytes, seconds) for nbytes, seconds in table.get("times", ()))
    except (TypeError, ValueError):
        raise ConfigError(
            f"{where}.times is {table['times']!r}", help="give [bytes, seconds] by ascending bytes"
        ) from None
    numbers: dict[str, float] = {key: value for key, value in table.items() if key != "times"}
    return Link(**numbers, times=times)


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
