"""What a benchmark found, as data: every sample, and all that one needs to take them again."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

__all__ = ["RESULTS", "ROOT", "Conditions", "Figure", "Goal", "Result"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("torch", "torch-mlir", "numpy", "samite", "samite-cpu")


@dataclass(frozen=True)
class Figure:
    """Samples of one quantity. `series` is the column of a table of several; `beside` names the figure of the same
    series that this one is compared with. Raises ValueError if there are no samples."""

    name: str
    unit: str
    samples: list[float]
    series: str = ""
    beside: str = ""

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError(f"no samples of {self.name}")

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The middle half of the samples lies between them."""
        if len(self.samples) == 1:
            return self.samples[0], self.samples[0]
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True)
class Goal:
    """A figure to reach: `figure` is to be `bound` (at least or at most) `target`, both in `unit`."""

    what: str
    bound: Literal["at least", "at most"]
    target: float
    unit: str
    figure: float

    @property
    def reached(self) -> bool:
        return self.figure >= self.target if self.bound == "at least" else self.figure <= self.target


@dataclass(frozen=True)
class Conditions:
    """Where and when, and by which command, samples were taken."""

    command: str
    date: str
    machine: dict[str, Any]
    versions: dict[str, str]

    @classmethod
    def here(cls, benchmark: str) -> Conditions:
        """To be taken before the measurement, whose own load would be seen otherwise."""
        return cls(
            command=" ".join(["python -m", f"benchmarks.{benchmark}", *sys.argv[1:]]),
            date=datetime.now(UTC).date().isoformat(),
            machine={
                "processor": _processor(),
                "cores": len(os.sched_getaffinity(0)),
                "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
                "system": f"{platform.system()} {platform.release()}",
                "load_before": round(os.getloadavg()[0], 2),
            },
            versions={"python": platform.python_version()} | _versions() | _commit(),
        )


@dataclass(frozen=True)
class Result:
    """One run of a benchmark. `absent` is what could not be measured, with the reason; `facts` are counts beside it."""

    name: str
    conditions: Conditions
    figures: list[Figure]
    goals: list[Goal] = field(default_factory=list[Goal])
    absent: dict[str, str] = field(default_factory=dict[str, str])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    def figure(self, name: str, series: str = "") -> Figure | None:
        return next((f for f in self.figures if (f.name, f.series) == (name, series)), None)

    def write(self, path: Path) -> None:
        """Derived values (medians, whether goals are reached) are written for other readers; `read` ignores them."""
        content = asdict(self)
        for figure, written in zip(self.figures, content["figures"], strict=True):
            written["samples"] = [float(f"{sample:.6g}") for sample in figure.samples]
            written["median"] = float(f"{figure.median:.6g}")
        for goal, written in zip(self.goals, content["goals"], strict=True):
            written["reached"] = goal.reached
        text = json.dumps(content, indent=1, ensure_ascii=False)
        text = re.sub(r"\[[\s\d.,e+-]*\]", lambda numbers: " ".join(numbers[0].split()), text)  # a list, a line
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Result:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            content["name"],
            Conditions(**content["conditions"]),
            [Figure(**_without(f, "median")) for f in content["figures"]],
            [Goal(**_without(g, "reached")) for g in content["goals"]],
            content["absent"],
            content["facts"],
        )


def _without(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in table.items() if k != key}


def _processor() -> str:
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return names[0] if names else platform.machine()


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _commit() -> dict[str, str]:
    """The commit that is measured, marked if files differ from it; nothing outside of a repository."""
    asked = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return {"commit": done.stdout.strip()} if done.returncode == 0 else {}
