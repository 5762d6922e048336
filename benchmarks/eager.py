"""Eager ops on distributed tensors, Samite's beside DTensor's: single ops, and a GPT's forward and backward.

The ops are chains of 200 on 8×8 tensors, in two processes that hold both libraries' tensors on the same gloo ranks, a
round of each chain in turn; no chain communicates, so its time is overhead, but for some microseconds of kernels that
both sides run. The GPT is not compiled; its tensors are all distributed on Samite's side, while `parallelize_module`
keeps what lies between its linear layers plain.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from benchmarks.eager_sides import CHAIN, CHAINS, both_libraries, dtensor_gpt, samite_gpt, whole_dtensor_gpt
from benchmarks.peers import Absent, Peers, Side
from benchmarks.quiet import FEW, LITTLE, Samples, others
from benchmarks.results import RESULTS, Conditions, Figure, Goal, Result
from benchmarks.tables import show
from benchmarks.workload import Workload

__all__ = ["collect", "main", "measure_chains", "measure_gpt"]

AGAINST = {"add": 1.0, "view": 0.5, "mm": 0.5}
"""How much of DTensor's time an op may take."""
GPT = 1.5
"""How many times faster than DTensor the GPT is to be."""
SIDES = {
    "DTensor": Side("DTensor, parallelize_module", dtensor_gpt, 2),
    "whole": Side("DTensor, every tensor distributed", whole_dtensor_gpt, 2, absent_if=(NotImplementedError,)),
    "Samite": Side("Samite, every tensor distributed", samite_gpt, 2),
}
"""Forward and backward of a GPT."""


def measure_chains(workload: Workload, rounds: int) -> dict[str, list[float]]:
    """Microseconds an op of each chain, on the slower of two ranks."""
    samples: dict[str, list[float]] = {name: [] for name in CHAINS}
    peers = Peers(Side("chains of ops", both_libraries, 2), workload)
    try:
        peers.wait_built()
        for turn in track(range(rounds + 1), description="chains", disable=not sys.stderr.isatty()):
            for name, ms in zip(CHAINS, peers.run(len(CHAINS)).milliseconds, strict=True):
                if turn:  # plans are made in the first round
                    samples[name].append(1e3 * ms / CHAIN)
    finally:
        peers.close()
    return samples


def measure_gpt(workload: Workload, steps: int, patience: float) -> tuple[dict[str, Samples], dict[str, str]]:
    """Milliseconds of a forward and a backward, on the slower of two ranks, and what is absent and why.

    A step of each side in turn: `steps` of them, and more for `patience` seconds where other processes disturb them.
    Raises RuntimeError if losses differ.
    """
    samples: dict[str, Samples] = {}
    absent: dict[str, str] = {}
    first: list[float] = []
    with ExitStack() as stack:
        present: dict[str, Peers] = {}
        for name, side in SIDES.items():
            peers = Peers(side, workload)
            stack.callback(peers.close)
            try:
                peers.wait_built()
                losses = peers.run(3).losses
            except Absent as reason:
                absent[side.name] = str(reason)
                continue
            present[name], samples[name] = peers, Samples()
            first = first or losses
            if any(abs(a - b) > 1e-3 for a, b in zip(losses, first, strict=True)):
                raise RuntimeError(f"{name} computes something else: losses {losses}, the first side's are {first}")
        until, done = time.monotonic() + patience, 0
        while done < steps or (time.monotonic() < until and any(len(x.quiet) < steps for x in samples.values())):
            done += 1
            for name, peers in present.items():
                with others(peers.pids) as cores:
                    took = peers.run(2).milliseconds[-1]  # the first wakes the ranks
                samples[name].add(took, *cores)
    return samples, absent


def collect(
    chains: dict[str, list[float]],
    gpt: dict[str, Samples],
    absent: dict[str, str],
    conditions: Conditions,
    workload: Workload,
) -> Result:
    figures = [Figure(name, "µs", samples, beside=_beside(name)) for name, samples in chains.items()]
    medians = {figure.name: figure.median for figure in figures}
    goals = [
        Goal(f"{op}: time beside DTensor's", "at most", most, "×", medians[f"Samite {op}"] / medians[f"DTensor {op}"])
        for op, most in AGAINST.items()
    ]
    undisturbed = all(len(samples.quiet) >= FEW for samples in gpt.values())
    models = {n: Figure(SIDES[n].name, "ms", x.quiet if undisturbed else x.values) for n, x in gpt.items()}
    ratio = models["DTensor"].median / models["Samite"].median
    goals.append(Goal("GPT, forward and backward: speed beside DTensor's", "at least", GPT, "×", ratio))
    facts = {f"{workload}, forward and backward, {m.name}": _of(m, gpt[n], undisturbed) for n, m in models.items()}
    return Result("eager", conditions, figures, goals, absent, facts)


def _of(model: Figure, samples: Samples, undisturbed: bool) -> str:
    count, all_of_them = len(model.samples), len(samples.values)
    which = f"the {count} of {all_of_them} steps" if undisturbed else f"{count} steps, not only those"
    return f"{model.median:.1f} ms (of {which} during which other processes had less than {LITTLE} cores)"


def _beside(name: str) -> str:
    library, _, op = name.partition(" ")
    return f"DTensor {op}" if library == "Samite" else ""


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of all chains.")] = 50,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of the GPT.")] = 50,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for undisturbed steps.")] = 60,
    output: Annotated[Path, typer.Option(help="Where the samples go.")] = RESULTS / "eager.json",
) -> None:
    conditions, workload = Conditions.here("eager"), Workload()
    chains = measure_chains(workload, rounds)
    result = collect(chains, *measure_gpt(workload, steps, patience), conditions, workload)
    show(result)
    result.write(output)


if __name__ == "__main__":
    typer.run(main)
