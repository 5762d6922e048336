"""What `import samite` costs beyond `import torch`: fresh interpreters of both, in turn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from benchmarks.results import RESULTS, Conditions, Figure, Goal, Result
from benchmarks.tables import show

__all__ = ["collect", "main", "seconds"]

MODULES = ("torch", "samite")
MOST = 0.3


def seconds(module: str) -> float:
    """Of `import module` in a fresh interpreter, whose own start is not counted.

    Raises CalledProcessError if it cannot be imported.
    """
    script = f"import time; started = time.perf_counter(); import {module}; print(time.perf_counter() - started)"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def collect(torch: list[float], samite: list[float], conditions: Conditions) -> Result:
    """From the seconds of both imports; `samite[i]` was taken right after `torch[i]`."""
    beyond = Figure("import samite beyond import torch", "s", [b - a for a, b in zip(torch, samite, strict=True)])
    figures = [Figure("import torch", "s", torch), Figure("import samite", "s", samite), beyond]
    return Result("import_time", conditions, figures, [Goal(beyond.name, "at most", MOST, "s", beyond.median)])


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Interpreters of each kind.")] = 15,
    output: Annotated[Path, typer.Option(help="Where the samples go.")] = RESULTS / "import_time.json",
) -> None:
    conditions = Conditions.here("import_time")
    for module in MODULES:
        seconds(module)  # so that files are in memory and compiled to bytecode
    samples: dict[str, list[float]] = {module: [] for module in MODULES}
    for _ in track(range(rounds), description="rounds", disable=not sys.stderr.isatty()):
        for module in MODULES:
            samples[module].append(seconds(module))
    result = collect(samples["torch"], samples["samite"], conditions)
    show(result)
    result.write(output)


if __name__ == "__main__":
    typer.run(main)
