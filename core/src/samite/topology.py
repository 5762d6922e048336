"""Topology: what a device and the links between ranks can do, as plain numbers for cost models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, cast

from samite.errors import ConfigError, nearest

__all__ = ["DeviceSpec", "Link", "Overlap", "Times", "Topology", "along"]

Times = tuple[tuple[float, float], ...]
"""Measured seconds by size, as (size, seconds), by ascending size."""


def along(times: Times, size: float, rate: float, start: float | None = None) -> float:
    """Seconds of a size: on straight lines between the measured ones, beyond them at `rate` a second. Sizes below the
    first take what that takes, or lie on a line from `start` at 0."""
    points = ((0.0, times[0][1] if start is None else start), *times)
    for (less, before), (more, after) in pairwise(points):
        if size <= more:
            return before + (after - before) * (size - less) / (more - less)
    return points[-1][1] + (size - points[-1][0]) / rate


ALGORITHMS = ("direct", "ring", "tree")
KINDS = ("product", "attention", "attention_backward", "function", "gelu", "norm", "update", "pass")
"""Of ops: `function` computes exponentials and the like, `norm` is a softmax or a normalization, `update` is of an
optimizer, `pass` moves data only."""


@dataclass(frozen=True)
class Link:
    """What one rank gets along a mesh axis: `bandwidth` in bytes/s received, `latency` in seconds a message. `times`
    are measured ones, as (bytes, seconds): between them times lie on straight lines, beyond them the bandwidth holds.
    `algorithms` are those of all_reduces by each algorithm that was tried, by the bytes of their operand.

    The defaults are those of processes of one host that exchange through shared memory: every byte is copied twice,
    through caches that do not hold it, and a message wakes up its receiver.
    """

    bandwidth: float = 4e9
    latency: float = 50e-6
    times: Times = ()
    algorithms: tuple[tuple[str, Times], ...] = ()

    def __post_init__(self) -> None:
        _require_positive(self.bandwidth, "a link's bandwidth (bytes/s)")
        _require_positive(self.latency, "a link's latency (seconds)", or_zero=True)
        for times in (self.times, *(times for _, times in self.algorithms)):
            _require_growing(times, "a link")
        if unknown := [name for name, times in self.algorithms if name not in ALGORITHMS or not times]:
            raise ConfigError(
                f'a link has no times of all_reduces by "{unknown[0]}"', help=f"give times of {', '.join(ALGORITHMS)}"
            )

    def seconds(self, nbytes: float) -> float:
        """Until one message of so many bytes has arrived."""
        if not self.times:
            return self.latency + nbytes / self.bandwidth
        return along(self.times, nbytes, self.bandwidth, self.latency)


@dataclass(frozen=True)
class Overlap:
    """What communication beside computation is worth: of two that take as long, `efficiency` is the part of one that
    the other hides, and `latency` the seconds that it takes to start one and to wait for it. By default nothing is
    hidden, as on a host whose cores all compute."""

    efficiency: float = 0.0
    latency: float = 50e-6

    def __post_init__(self) -> None:
        _require_positive(self.efficiency, "an overlap's efficiency", or_zero=True)
        _require_positive(self.latency, "an overlap's latency (seconds)", or_zero=True)
        if self.efficiency > 1:
            raise ConfigError(f"an overlap's efficiency is {self.efficiency}", help="give a number from 0 to 1")


@dataclass(frozen=True)
class DeviceSpec:
    """One device: `memory` in bytes (0 if not known), peak `flops` in operations/s by dtype, `bandwidth` in bytes/s.

    The bandwidth is that of its memory; `latency` is the seconds that it takes to start an op. The defaults are of the
    order of one core of a server with 256-bit vectors, and of torch's dispatcher.

    `times` are measured seconds of whole ops, starts included, by kind of op (`KINDS`) and size, which go before all of
    this. A size is operations of what multiplies (products and attention), else bytes read and written.
    """

    kind: str = "cpu"
    memory: int = 0
    flops: tuple[tuple[str, float], ...] = (("float32", 4e10), ("float64", 2e10))
    bandwidth: float = 1e10
    latency: float = 5e-6
    times: tuple[tuple[str, Times], ...] = ()

    def __post_init__(self) -> None:
        for kind, times in self.times:
            _require_growing(times, f"a device's {kind}")
            if kind not in KINDS or not times:
                raise ConfigError(f'a device has no times of "{kind}"', help=nearest(kind, KINDS))
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
    """The device of every rank and the link along each mesh axis; `default` serves axes that have none of their own.
    A call takes `call` seconds beside its ops: until ranks have been told, and have answered."""

    device: DeviceSpec = field(default_factory=DeviceSpec)
    links: tuple[tuple[str, Link], ...] = ()
    default: Link = field(default_factory=Link)
    overlap: Overlap = field(default_factory=Overlap)
    call: float = 0.0

    def __post_init__(self) -> None:
        _require_positive(self.call, "the seconds of a call", or_zero=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Topology:
        """From nested dicts as a TOML or JSON file has them; what is left out has its default.

            {"device": {"kind": "gpu", "flops": {"bfloat16": 9.9e14}}, "links": {"tp": {"bandwidth": 4e11}}}

        A link may have `times`, as [[bytes, seconds], ...], and `algorithms`, a table of such by name.

        Raises ConfigError for an unknown key, a value that is not a number, or a number out of range.
        """
        _require_keys(data, ("device", "links", "default", "overlap", "call"), "topology")
        device = dict(_table(data.get("device", {}), "device"))
        _require_keys(device, ("kind", "memory", "flops", "bandwidth", "latency", "times"), "device")
        if "flops" in device:
            device["flops"] = tuple(sorted(_table(device["flops"], "device.flops").items()))
        if "times" in device:
            table = _table(device["times"], "device.times")
            device["times"] = tuple((kind, _times(times, f"device.times.{kind}")) for kind, times in table.items())
        links = {axis: _link(link, f"links.{axis}") for axis, link in _table(data.get("links", {}), "links").items()}
        overlap = _table(data.get("overlap", {}), "overlap")
        _require_keys(overlap, ("efficiency", "latency"), "overlap")
        default = _link(data.get("default", {}), "default")
        return cls(DeviceSpec(**device), tuple(links.items()), default, Overlap(**overlap), data.get("call", 0.0))

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` takes."""
        device = asdict(self.device) | {"flops": dict(self.device.flops), "times": dict(self.device.times)}
        links = {axis: _written(link) for axis, link in self.links}
        return {
            "device": device,
            "links": links,
            "default": _written(self.default),
            "overlap": asdict(self.overlap),
            "call": self.call,
        }

    def describes(self, axis: str) -> bool:
        """Whether anything is known of the link along an axis: the usual numbers are of no machine."""
        return axis in dict(self.links) or self.default != Link()

    def link(self, axis: str) -> Link:
        """The link along a mesh axis."""
        return dict(self.links).get(axis, self.default)

    def cost(self, nbytes: float, axis: str, messages: int = 1) -> float:
        """Seconds until each rank has received `nbytes` along `axis`, in `messages` messages one after another."""
        link = self.link(axis)
        return (messages - 1) * link.latency + link.seconds(nbytes)


def _link(data: Any, where: str) -> Link:
    table = _table(data, where)
    _require_keys(table, ("bandwidth", "latency", "times", "algorithms"), where)
    by_name = _table(table.get("algorithms", {}), f"{where}.algorithms")
    algorithms = tuple((name, _times(times, f"{where}.algorithms.{name}")) for name, times in by_name.items())
    numbers: dict[str, float] = {key: table[key] for key in ("bandwidth", "latency") if key in table}
    return Link(**numbers, times=_times(table.get("times", ()), f"{where}.times"), algorithms=algorithms)


def _written(link: Link) -> dict[str, Any]:
    return asdict(link) | {"algorithms": dict(link.algorithms)}


def _times(data: Any, where: str) -> Times:
    try:
        return tuple((size, seconds) for size, seconds in data)
    except (TypeError, ValueError):
        raise ConfigError(f"{where} is {data!r}", help="give [size, seconds] by ascending size") from None


def _table(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} is {data!r}, not a table", help="give keys and values")
    return cast("Mapping[str, Any]", data)


def _require_keys(data: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in data:
        if key not in known:
            raise ConfigError(f'{where} has no key "{key}"', help=nearest(str(key), known))


def _require_growing(times: Times, whose: str) -> None:
    for size, seconds in times:
        _require_positive(size, f"the bytes of {whose}'s time")
        _require_positive(seconds, f"{whose}'s time (seconds)")
    if any(one[0] >= other[0] or one[1] > other[1] for one, other in pairwise(times)):
        raise ConfigError(f"{whose}'s times do not grow", help="give [bytes, seconds] by ascending bytes")


def _require_positive(value: object, what: str, *, or_zero: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 or (or_zero and value == 0)):
        raise ConfigError(f"{what} is {value!r}", help=f"give a number above 0{', or 0' if or_zero else ''}")
