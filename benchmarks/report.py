"""`docs/benchmarks.md` from the files in `benchmarks/results`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.results import RESULTS, ROOT, Result
from benchmarks.tables import figures, goals, markdown

__all__ = ["PAGE", "main", "page", "stored"]

PAGE = ROOT / "docs" / "benchmarks.md"

INTRODUCTION = """\
# Figures

Both sides of a comparison are measured in one run, a round each in turn, so that a drift of the machine falls on both.
A figure is the median of all samples; half of them lie in the range beside it. `benchmarks/results` has every sample.
"""

SECTIONS = {
    "gpt_step": (
        "A training step",
        """\
Forward, backward and AdamW of a small GPT in float32, two processes of one thread each. All sides train the same
weights on the same data; their losses over the first steps agree to 0.001, or the run ends there. A step lasts until
its loss is known, on the slowest rank. DistributedDataParallel and DTensor are eager, AdamW as PyTorch's multi-tensor
(`foreach`) or single-kernel (`fused`) form; DTensor splits `q`, `k`, `v`, `up` by columns and `proj`, `down` by rows
(`parallelize_module`). Samite runs the same model, with the loop of a single process.""",
    ),
    "pipeline": (
        "A pipeline",
        """\
The same training step in a pipeline of two stages, two blocks each, and eight microbatches, 1F1B, two processes of one
thread each; torch.distributed.pipelining has the same stages, eager, with AdamW's `foreach` form, over gloo. A side's
simulated ideal is its schedule with the median times of its functions, each run alone on one thread in a third process:
transfers, sums of gradients over microbatches and starting a step take no time in it.""",
    ),
    "eager": (
        "Eager ops",
        """\
Microseconds an op, in chains of 200 on 8×8 tensors split over two processes by rows, with and without a gradient to
come; nothing communicates. Both libraries' tensors live in the same processes, and take turns. `mm` has a replicated
second operand; `view` is of one tensor again and again. Below, forward and backward of the GPT without compiling: every
tensor is distributed on Samite's side, while `parallelize_module` keeps plain what lies between its linear layers.""",
    ),
    "compile_time": (
        "Compiling",
        """\
From a captured training step of the same model to the program of each worker, on dp=2, tp=2. A cold run is the first
of a fresh process and includes loading torch-mlir; a warm one finds rules and plans in caches. A sample is one process.
MLIR counts constants and lists as operations; *ops* are what a rank calls.""",
    ),
    "dispatch": (
        "Dispatch",
        """\
What a step costs beyond its work. For the engine: the round trip of a program that adds 1 to each of its buffers, less
the slowest worker's own time from its first op to its last, one step at a time. For the caller: the processor time of
one call of a compiled training step. It passes while the workers are at the step before, unless it awaits a loss.""",
    ),
    "collectives": (
        "Collectives",
        """\
Microseconds of an all-reduce by its size, by algorithm: `auto` is what the backend does unasked, `hierarchical` a
reduce-scatter between two, an all-reduce across, an all-gather back. Ranks are processes of one thread that meet in
shared memory, or over sockets of the loopback interface (gloo). A sample is the slowest rank's time. Four ranks are
more than cores, so they also wait for each other's turn. Below, all gradients of the GPT between two ranks.""",
    ),
    "predicted": (
        "Predicted steps",
        """\
A training step of the same GPT on two workers as the timeline of `samite explain` predicts it, and as it was measured.
The topology was measured in the same run: ops of each kind at some sizes, collectives, and a call. The model knows
nothing of the GPT.""",
    ),
    "second_start": (
        "Starting again",
        """\
From the end of the capture of a training step to its first loss in Inductor mode, data parallel on two workers, each
start a fresh process. A first start finds empty caches; a second one Inductor's own, with and without what Samite
keeps of compiled programs.""",
    ),
    "import_time": ("Importing", "Seconds in fresh interpreters, in turn, files being in memory."),
}
"""Benchmark -> its title, and what was measured how."""


def stored(folder: Path = RESULTS) -> dict[str, Result]:
    """The results in a folder, by benchmark. Raises ValueError for a file that belongs to none."""
    found: dict[str, Result] = {}
    for path in sorted(folder.glob("*.json")):
        if path.stem not in SECTIONS:
            raise ValueError(f"{path.name} is the result of no benchmark: {', '.join(SECTIONS)}")
        found[path.stem] = Result.read(path)
    return found


def page(results: Mapping[str, Result]) -> str:
    """The whole page. A benchmark without a result says how to get one."""
    lines = [INTRODUCTION]
    reached = [goal for name in SECTIONS if name in results for goal in results[name].goals]
    if reached:
        lines += [*markdown(goals(reached)), ""]
    for name, (title, text) in SECTIONS.items():
        lines += [f"## {title}", "", text, ""]
        lines += (
            _section(results[name]) if name in results else [f"Not measured yet: `python -m benchmarks.{name}`.", ""]
        )
    return "\n".join(lines).rstrip() + "\n"


def _section(result: Result) -> list[str]:
    taken = result.conditions
    machine = dict(taken.machine)
    lines = [*markdown(figures(result)), ""]
    lines += [f"- {what}: {_text(why)}" for what, why in result.facts.items()]
    lines += [f"- {what}: absent ({why})" for what, why in result.absent.items()]
    lines += [
        f"- command: `{taken.command}`, on {taken.date}",
        f"- machine: {machine.pop('processor')}, {_pairs(machine)}",
        f"- versions: {_pairs(taken.versions)}",
        "",
    ]
    return lines


def _pairs(table: Mapping[str, object]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in table.items())


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def main() -> None:
    PAGE.write_text(page(stored()), encoding="utf-8")


if __name__ == "__main__":
    main()
