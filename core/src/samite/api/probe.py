"""What the devices and links of a mesh do, by a few short programs that its own workers run. Seconds, once a mesh."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from samite.hal.program import Program, Result
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.session import Session, session_of
from samite.topology import DeviceSpec, Link, Topology

__all__ = ["measure"]

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24)
"""Bytes of the tensors that are reduced: from what latency decides to what bandwidth does."""

REPEATS, MANY = 4, 64
"""What is measured is done so often in one program, and the time of a program without it is taken off. What is over in
microseconds is done many times."""

RUNS = 5
"""Of which the quickest counts: a busy machine only ever adds."""

SQUARE = 512
"""Rows and columns of the product that tells the arithmetic."""

Body = Callable[[torch.Tensor], torch.Tensor]


def measure(mesh: Mesh) -> Topology:
    """All ranks work at once, so what they share is shared."""
    session = session_of(mesh)
    links = tuple((axis, _link(session, axis, n)) for axis, n in mesh.items() if n > 1)
    return Topology(_device(session, mesh), links)


def _device(session: Session, mesh: Mesh) -> DeviceSpec:
    product = _seconds(session, (SQUARE, SQUARE), lambda x: x @ x)
    large = SIZES[-1] // 4
    pass_ = _seconds(session, (large,), torch.neg)
    start = _seconds(session, (1,), torch.neg, MANY)
    flops = (("float32", 2 * SQUARE**3 / product),)
    return DeviceSpec(mesh.backends[0], 0, flops, 2 * SIZES[-1] / pass_, start)


def _link(session: Session, axis: str, n: int) -> Link:
    """An all_reduce brings a rank 2 (n - 1) / n times the tensor."""
    times: list[tuple[float, float]] = []
    for size in SIZES:
        seconds = _seconds(session, (size // 4,), lambda x: torch.ops.samite.all_reduce(x, axis, "max"))
        times.append((2 * (n - 1) * size / n, max([seconds, *(t for _, t in times)])))
    (less, before), (more, after) = times[-2:]
    bandwidth = (more - less) / max(after - before, 1e-9)
    return Link(bandwidth, times[0][1], tuple(times))


def _seconds(session: Session, shape: tuple[int, ...], body: Body, repeats: int = REPEATS) -> float:
    """Of `body`, on a tensor of this shape on every rank."""
    with_it, without = (_run(session, _program(session.mesh, shape, body, n)) for n in (repeats, 0))
    return max(with_it - without, 1e-9) / repeats


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
