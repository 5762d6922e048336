"""What the devices and links of a mesh do, by a few short programs that its own workers run. Seconds, once a mesh."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import lru_cache
from math import prod

import torch

from samite.api.work import Body, device_work
from samite.hal.program import Program, Result
from samite.ir.collectives import AUTO
from samite.ir.graph import overload
from samite.layout import Layout
from samite.mesh import Mesh
from samite.plugins import driver
from samite.runtime.session import Session, session_of
from samite.topology import DeviceSpec, Link, Overlap, Times, Topology

__all__ = ["measure"]

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24)
"""Bytes of the tensors that are reduced: from what latency decides to what bandwidth does."""

REPEATS, MANY = 4, 64
"""What is measured is done so often in one program, and the time of a program without it is taken off. What is over in
microseconds is done many times."""

RUNS = 5
"""Of which the quickest counts: a busy machine only ever adds."""

FEW = 1 << 14
"""Elements that are over in microseconds."""

SQUARE = 512
"""Rows and columns of the products that run beside communication."""
MOST = 32
"""Of them beside one collective."""


def measure(mesh: Mesh) -> Topology:
    """All ranks work at once, so what they share is shared."""
    session = session_of(mesh)
    axes = [axis for axis, n in mesh.items() if n > 1]
    device = _device(session)
    links = tuple((axis, _link(session, axis)) for axis in axes)
    overlap = _overlap(session, axes[0], device) if axes else Overlap()
    return Topology(device, links, overlap=overlap, call=_without(session, (1,)))


def _device(session: Session) -> DeviceSpec:
    times = tuple(
        (kind, _growing((size, _seconds(session, shape, body)) for size, shape, body in works))
        for kind, works in device_work().items()
    )
    (operations, took), (nbytes, passed), (_, started) = (
        dict(times)["product"][-1],
        dict(times)["pass"][-1],
        dict(times)["pass"][0],
    )
    return DeviceSpec(session.mesh.backends[0], 0, (("float32", operations / took),), nbytes / passed, started, times)


def _link(session: Session, axis: str) -> Link:
    """An all_reduce brings a rank 2 (n - 1) / n times the tensor."""
    n, algorithms = session.mesh[axis], driver(session.mesh.backends[0]).algorithms
    times = tuple((2 * (n - 1) * size / n, seconds) for size, seconds in _all_reduces(session, axis, AUTO))
    (less, before), (more, after) = times[-2:]
    bandwidth = (more - less) / max(after - before, 1e-9)
    return Link(bandwidth, times[0][1], times, tuple((name, _all_reduces(session, axis, name)) for name in algorithms))


def _all_reduces(session: Session, axis: str, algorithm: str) -> Times:
    """By the bytes of the tensor."""

    def reduced(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.samite.all_reduce(x, axis, "max", algorithm)

    return _growing((size, _seconds(session, (size // 4,), reduced)) for size in SIZES)


def _growing(measured: Iterable[tuple[float, float]]) -> Times:
    """More never takes less time."""
    found: list[tuple[float, float]] = []
    for size, seconds in measured:
        found.append((size, max([seconds, *(before for _, before in found)])))
    return tuple(found)


def _overlap(session: Session, axis: str, device: DeviceSpec) -> Overlap:
    """Products beside an all_reduce that takes about as long, and a message that is started beside one that is not."""

    def started(x: torch.Tensor) -> torch.Tensor:
        return overload("samite.start")(x, "all_reduce", axis, [], [], "max", session.mesh[axis], 0, [], -1)

    def products() -> torch.Tensor:
        square = torch.zeros((SQUARE, SQUARE))
        for _ in range(count):
            square = square @ square
        return square.sum()

    def computed(x: torch.Tensor) -> torch.Tensor:
        return x + products()

    def beside(x: torch.Tensor) -> torch.Tensor:
        under_way, product = started(x), products()
        return overload("samite.wait")(under_way) + product  # what nothing uses would not be computed

    def reduced(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.samite.all_reduce(x, axis, "max")

    shape = (SIZES[-1] // 4,)
    communicating = _seconds(session, shape, reduced)
    count = min(MOST, max(1, round(communicating * device.rate("float32") / (2 * SQUARE**3))))
    computing, both = _seconds(session, shape, computed), _seconds(session, shape, beside)
    hidden = (computing + communicating - both) / min(computing, communicating)
    apart = _seconds(session, (1,), lambda x: overload("samite.wait")(started(x)))
    latency = apart - _seconds(session, (1,), reduced)
    return Overlap(min(1.0, max(0.0, hidden)), max(0.0, latency))


def _seconds(session: Session, shape: tuple[int, ...], body: Body) -> float:
    """Of `body`, on a tensor of this shape on every rank."""
    repeats = MANY if prod(shape) <= FEW else REPEATS
    with_it = _run(session, _program(session.mesh, shape, body, repeats))
    return max(with_it - _without(session, shape), 1e-9) / repeats


@lru_cache(maxsize=64)
def _without(session: Session, shape: tuple[int, ...]) -> float:
    return _run(session, _program(session.mesh, shape, torch.neg, 0))


def _program(mesh: Mesh, shape: tuple[int, ...], body: Body, repeats: int) -> Program:
    from samite.ir.build import Builder
    from samite.ir.importer import trace
    from samite.ir.module import Module

    def run() -> torch.Tensor:
        x = torch.zeros(shape)
        for _ in range(repeats):
            x = body(x)
        return x.flatten()[:1].sum()

    module = Module.empty(mesh)
    with Builder(module, "main", ()) as build:
        build.finish(build.inline(trace(run, []), ()))
    return Program("probe", mesh, module.text(), (), (Result("out", "float32", Layout(())),))


def _run(session: Session, program: Program) -> float:
    """Seconds of the quickest run."""
    handle = session.load(program, {"mode": "aten"})
    out = session.number()
    found: list[float] = []
    for _ in range(1 + RUNS):
        started = time.perf_counter()
        session.wait(session.run(handle, [], [out]))
        found.append(time.perf_counter() - started)
    session.discard(out)
    return min(found[1:])
