"""Rounds of several sides in turn, on equal terms: what they train agrees, or nothing is timed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.progress import track

from benchmarks.peers import Absent, Peers, Side
from benchmarks.workload import Workload

__all__ = ["TOLERANCE", "Measured", "check_losses", "measure"]

TOLERANCE = 1e-3


@dataclass
class Measured:
    """Milliseconds of the timed steps and reasons of absence, by side; the first side's losses in the first steps."""

    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    absent: dict[str, str] = field(default_factory=dict[str, str])
    losses: list[float] = field(default_factory=list[float])


def measure(
    sides: Mapping[str, Side],
    workload: Workload,
    *,
    rounds: int,
    steps: int,
    warmup: int,
    between: Callable[[], None] = lambda: None,
) -> Measured:
    """Rounds of `steps` timed steps a side, each after one that is not timed, since caches hold the side before;
    `between` is called after each round, while no side runs.

    Raises RuntimeError if losses of the `warmup` steps differ by more than `TOLERANCE` from the first side's.
    """
    measured = Measured()
    with ExitStack() as stack:
        present: dict[str, Peers] = {}
        for key, side in sides.items():  # one after the other: compiling side by side would take as long
            peers = Peers(side, workload)
            stack.callback(peers.close)
            try:
                peers.wait_built()
                losses = peers.run(warmup).losses
            except Absent as reason:
                measured.absent[key] = str(reason)
                continue
            measured.losses = measured.losses or losses
            check_losses(side.name, losses, measured.losses)
            present[key] = peers
        for _ in track(range(rounds), description="rounds", disable=not sys.stderr.isatty()):
            for key, peers in present.items():
                measured.samples.setdefault(key, []).extend(peers.run(steps + 1).milliseconds[1:])
            between()
    return measured


def check_losses(name: str, losses: Sequence[float], expected: Sequence[float]) -> None:
    """Raises RuntimeError where they differ, or are none."""
    if not all(abs(a - b) <= TOLERANCE for a, b in zip(losses, expected, strict=True)):
        raise RuntimeError(f"{name} computes something else: losses {losses}, the first side's are {expected}")
