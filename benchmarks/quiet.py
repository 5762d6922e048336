"""How much of the machine other processes had while something was measured, and which samples they left alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

__all__ = ["FEW", "LITTLE", "Samples", "others"]

LITTLE = 0.3
"""Cores that other processes may have, on average, during a sample that counts as undisturbed."""
FEW = 10
"""Undisturbed samples that are enough to do without the others."""


@contextmanager
def others(pids: Iterable[int]) -> Iterator[list[float]]:
    """Appends the cores that processes besides this one and `pids` had within. Linux; by its clock of 10 ms."""
    mine = [os.getpid(), *pids]
    found: list[float] = []
    started, busy, own = perf_counter(), _busy(), _own(mine)
    yield found
    seconds = (_busy() - busy - (_own(mine) - own)) / os.sysconf("SC_CLK_TCK")
    found.append(max(0.0, seconds / (perf_counter() - started)))


def _busy() -> int:
    """Ticks of all cores that were not idle, those that a hypervisor took included."""
    words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, words)
    return user + nice + system + interrupts + soft + stolen


def _own(pids: list[int]) -> int:
    words = [Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split() for pid in pids]
    return sum(int(found[11]) + int(found[12]) for found in words)


@dataclass
class Samples:
    """Of one quantity, with the cores that others had during each."""

    values: list[float] = field(default_factory=list[float])
    disturbed: list[float] = field(default_factory=list[float])

    def add(self, value: float, cores: float) -> None:
        self.values.append(value)
        self.disturbed.append(cores)

    @property
    def quiet(self) -> list[float]:
        """Those that others left alone."""
        return [v for v, cores in zip(self.values, self.disturbed, strict=True) if cores < LITTLE]
