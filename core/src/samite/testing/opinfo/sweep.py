"""One entry of the database through Samite (and DTensor), against plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from samite.mesh import Mesh
from samite.rules import rules
from samite.testing.opinfo.calls import OpCall, expected
from samite.testing.opinfo.database import Drawn, dtypes_of, entries, generator_of, samples
from samite.testing.opinfo.outcomes import Outcome, of_error
from samite.testing.opinfo.placements import MESHES, Placed, describe, placements
from samite.testing.opinfo.record import Direction, Record
from samite.testing.opinfo.subject import Subject

__all__ = ["Effort", "sweep"]


@dataclass(frozen=True)
class Effort:
    """How much of each entry is tried: `samples` of its main dtype (a third as many of others), `placements` of each
    sample and mesh forward (half as many for gradients). `dtensor` has DTensor try the same."""

    samples: int = 6
    placements: int = 6
    seed: int = 0
    dtensor: bool = False


def sweep(name: str, effort: Effort) -> Record:
    """Try one entry. Deterministic: what is drawn depends on the entry and the seed."""
    tried = _Sweep(name, effort)
    for number, dtype in enumerate(dtypes_of(entries()[name])):
        limit = effort.samples if number == 0 else -(-effort.samples // 3)
        for drawn in samples(name, dtype, limit, effort.seed):
            tried.sample(drawn)
    return tried.record


class _Sweep:
    def __init__(self, name: str, effort: Effort) -> None:
        self.record, self.effort = Record(name), effort
        self.generator, self.chance = generator_of(name, effort.seed)

    def sample(self, drawn: Drawn) -> None:
        self.record.samples += not drawn.in_place
        count = len(drawn.call.tensors)
        self.call(drawn.call, "in place" if drawn.in_place else "forward", count, self.effort.placements)
        if drawn.in_place:
            return
        try:
            backward = drawn.call.backward(drawn.process, self.generator) if drawn.call.learned else None
        except Exception:  # plain PyTorch cannot: there is nothing to compare with
            self.skip(drawn.call, "gradient")
            return
        if backward is not None:
            self.call(backward, "gradient", count, max(self.effort.placements // 2, 1))

    def skip(self, call: OpCall, direction: Direction) -> None:
        self.record.samite.add(Outcome("skipped"), direction, call.text, "")
        self.record.dtensor.add(Outcome("skipped"), direction, call.text, "")

    def call(self, call: OpCall, direction: Direction, count: int, limit: int) -> None:
        """Only the first `count` tensors are placed: a cotangent lies as its user happens to have it."""
        try:
            before = torch.get_rng_state()
            eager, _ = expected(call, None)
            random = not torch.equal(before, torch.get_rng_state())
        except Exception:
            self.skip(call, direction)
            return
        drawn = [(mesh, placed) for mesh in MESHES for placed in self._placements(call, mesh, count, limit)]
        self._samite(call, direction, drawn)
        if self.effort.dtensor:
            self._dtensor(call, direction, drawn, eager, random=random)

    def _placements(self, call: OpCall, mesh: Mesh, count: int, limit: int) -> Iterator[Placed]:
        return placements(call.tensors[:count], mesh, limit, self.chance)

    def _samite(self, call: OpCall, direction: Direction, drawn: list[tuple[Mesh, Placed]]) -> None:
        record = self.record
        try:
            subject = Subject(call)
            wanted, after = expected(call, subject.seed)
        except Exception as error:
            record.samite.add(of_error(error), direction, call.text, "")
            return
        record.ops = list(dict.fromkeys([*record.ops, *subject.ops]))
        if missing := [op for op in subject.ops if op not in rules()]:
            for op in missing:
                record.samite.add(Outcome("unsupported", f"no rule: {op}"), direction, call.text, "")
            return
        for mesh, placed in drawn:
            where = f"{mesh}: {describe(placed)}"
            try:
                tried = subject.run(placed, mesh, wanted, after)
            except Exception as error:
                record.samite.add(of_error(error), direction, call.text, where)
                continue
            outcome = Outcome("wrong", tried.problem) if tried.problem else Outcome("right")
            record.samite.add(outcome, direction, call.text, where)
            if direction == "forward" and len(placed) == 1 and len(mesh) == 1:
                record.local += not tried.gathers
                record.whole += tried.gathers

    def _dtensor(
        self, call: OpCall, direction: Direction, drawn: list[tuple[Mesh, Placed]], wanted: Any, *, random: bool
    ) -> None:
        from samite.testing.opinfo.dtensor import run_dtensor

        outcomes = run_dtensor(call, drawn, wanted, random=random)
        for (mesh, placed), outcome in zip(drawn, outcomes, strict=True):
            self.record.dtensor.add(outcome, direction, call.text, f"{mesh}: {describe(placed)}")
