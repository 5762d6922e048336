"""One entry of the database through Samite (and DTensor), against plain PyTorch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from samite.mesh import Mesh
from samite.rules import rules
from samite.testing.opinfo.calls import OpCall, expected
from samite.testing.opinfo.database import dtypes_of, entries, generator_of, samples
from samite.testing.opinfo.outcomes import Outcome, of_error
from samite.testing.opinfo.placements import MESHES, Placed, describe, placements
from samite.testing.opinfo.record import Direction, Record
from samite.testing.opinfo.subject import Subject

__all__ = ["Effort", "sweep"]


@dataclass(frozen=True)
class Effort:
    """How much of each entry is tried: `samples` of its main dtype (a third of other dtypes), `placements` of each
    sample and mesh forward (half of them for gradients)."""

    samples: int = 6
    placements: int = 6
    seed: int = 0


def sweep(name: str, effort: Effort) -> Record:
    """Try one entry. Deterministic: what is drawn depends on the entry and the seed."""
    record = Record(name)
    generator, chance = generator_of(name, effort.seed)
    for number, dtype in enumerate(dtypes_of(entries()[name])):
        limit = effort.samples if number == 0 else -(-effort.samples // 3)
        for drawn in samples(name, dtype, limit, effort.seed):
            record.samples += 1
            _try(record, drawn.call, "forward", chance, effort.placements)
            try:
                backward = drawn.call.backward(drawn.process, generator) if drawn.call.learned else None
            except Exception:  # plain PyTorch cannot: there is nothing to compare with
                record.samite.add(Outcome("skipped"), "gradient", drawn.call.text, "")
                continue
            if backward is not None:
                _try(record, backward, "gradient", chance, max(effort.placements // 2, 1))
    record.ops = list(dict.fromkeys(record.ops))
    return record


def _try(record: Record, call: OpCall, direction: Direction, chance: random.Random, limit: int) -> None:
    try:
        expected(call, None)
    except Exception:
        record.samite.add(Outcome("skipped"), direction, call.text, "")
        return
    try:
        subject = Subject(call)
        wanted, after = expected(call, subject.seed)
    except Exception as error:
        record.samite.add(of_error(error), direction, call.text, "")
        return
    record.ops.extend(subject.ops)
    if missing := [op for op in subject.ops if op not in rules()]:
        for op in missing:
            record.samite.add(Outcome("unsupported", f"no rule: {op}"), direction, call.text, "")
        return
    for mesh, placed in _places(call, chance, limit):
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


def _places(call: OpCall, chance: random.Random, limit: int) -> Iterator[tuple[Mesh, Placed]]:
    for mesh in MESHES:
        for placed in placements(call.tensors, mesh, limit, chance):
            yield mesh, placed
