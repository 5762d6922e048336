"""The report of a compiled program: what `samite explain` shows, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from math import prod
from typing import Any

from rich.filesize import decimal

from samite.api.program import Built
from samite.ir.regions import all_nodes
from samite.passes.traffic import itemsize
from samite.report.functions import functions_of
from samite.report.partition import PartitionRow, partition_rows
from samite.report.traffic import CollectiveRow, collective_rows
from samite.report.transfers import transfer_rows

__all__ = ["PassSummary", "Report", "describe"]


@dataclass(frozen=True)
class PassSummary:
    """`seconds` that a pass took, `ops` in the module after it, and what it has to say to the user."""

    name: str
    seconds: float
    ops: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """A program by its tables. `partition` has a row for every tensor; `condense` shortens it for people.

    `program` is the first part of the program's digest, which names it in caches and logs.
    """

    function: str
    mesh: str
    axes: Mapping[str, int]
    engine: str
    program: str
    ops: int
    passes: tuple[PassSummary, ...]
    partition: tuple[PartitionRow, ...]
    collectives: tuple[CollectiveRow, ...]

    @property
    def ranks(self) -> int:
        return prod(self.axes.values())

    @property
    def state_bytes(self) -> tuple[int, int]:
        """Bytes of state (parameters, buffers, optimizer state) that a rank holds, the one with most if they are not
        alike, and that there are globally."""
        state = [row for row in self.partition if row.kind == "state"]
        axes = sorted({axis for row in state for axis, _ in row.home})
        places = (set(zip(axes, at, strict=True)) for at in product(*(range(self.axes[axis]) for axis in axes)))
        held = max(sum(row.rank_bytes for row in state if place.issuperset(row.home)) for place in places)
        return held, sum(prod(row.shape) * itemsize(row.dtype) for row in state)

    @property
    def verdict(self) -> str:
        """The program in one sentence: memory and traffic of a rank."""
        held, there = self.state_bytes
        if self.ranks == 1:
            return f"One rank holds all state, {decimal(held)}, and communicates with none."
        most = "up to " * any(row.home for row in self.partition if row.kind == "state")
        memory = f"Each of {self.ranks} ranks holds {most}{decimal(held)} of {decimal(there)} of state"
        if not self.collectives:
            return f"{memory} and receives nothing: they do not communicate."
        count, nbytes = sum(c.count for c in self.collectives), sum(c.total_bytes for c in self.collectives)
        over: dict[str, int] = {}
        for each in self.collectives:
            axes = "·".join(each.axes)
            over[axes] = over.get(axes, 0) + each.total_bytes
        shares = [f"{axes} {decimal(n)}" for axes, n in sorted(over.items(), key=lambda x: -x[1])]
        split = f" ({', '.join(shares)})" if len(shares) > 1 else f" over {next(iter(over))}"
        return f"{memory}; a call brings it {decimal(nbytes)} in {count} collective{'s' * (count > 1)}{split}."

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with the state bytes and the verdict."""
        held, there = self.state_bytes
        derived = {"state_bytes": {"rank": held, "global": there}, "verdict": self.verdict}
        return asdict(self) | {"axes": dict(self.axes)} | derived


def describe(built: Built) -> Report:
    """The report of a program, as `Compiled.lower` gives it for a call."""
    program = built.program
    functions = functions_of(program)
    return Report(
        function=program.name,
        mesh=str(program.mesh),
        axes=dict(program.mesh),
        engine=program.mesh.engine,
        program=program.digest[:12],
        ops=sum(1 for function in functions for _ in all_nodes(function.graph)),
        passes=tuple(PassSummary(r.name, r.seconds, r.ops, r.notes) for r in built.records),
        partition=partition_rows(built, functions),
        collectives=(*collective_rows(built, functions), *transfer_rows(program, functions)),
    )
