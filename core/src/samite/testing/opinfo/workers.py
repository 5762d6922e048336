"""Sweeps in processes of their own.

A worker is asked for entries, each with whether DTensor tries it too, and answers with a record as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict, replace

from samite.errors import WorkerError
from samite.testing.opinfo.outcomes import Outcome
from samite.testing.opinfo.record import Record
from samite.testing.opinfo.sweep import Effort, sweep
from samite.testing.workers import Worker, answer, share

__all__ = ["sweep_all"]

SECONDS = 300.0
"""Of one entry, before its worker is ended."""


def sweep_all(
    names: Sequence[str],
    effort: Effort,
    processes: int = 2,
    seconds: float = SECONDS,
    alone: Container[str] = (),
) -> Iterator[Record]:
    """A record of each entry, as they are done. DTensor tries none of `alone`.

    What is left is dropped when the iterator is closed.
    """

    def record(worker: Worker, name: str) -> Record:
        both = effort.dtensor and name not in alone
        try:
            return _ask(worker, name, both, seconds)
        except WorkerError as error:
            failed = error
        if both:
            try:
                found = _ask(worker, name, False, seconds)  # it may be DTensor that fails
            except WorkerError:
                pass
            else:
                found.dtensor.add(Outcome("unsupported", failed.what), "forward", "", "")
                return found
        found = Record(name)
        found.samite.add(Outcome("crashed", failed.what), "forward", "", "")
        return found

    command = [sys.executable, "-m", "samite.testing.opinfo.workers", json.dumps(asdict(effort))]
    return share(names, record, command, processes)


def _ask(worker: Worker, name: str, dtensor: bool, seconds: float) -> Record:
    return Record.from_json(json.loads(worker.ask(f"{name}\t{int(dtensor)}", seconds)))


def _reply(question: str, effort: Effort) -> str:
    name, dtensor = question.split("\t")
    return json.dumps(sweep(name, replace(effort, dtensor=dtensor == "1")).to_json())


if __name__ == "__main__":
    given = Effort(**json.loads(sys.argv[1]))
    answer(sys.stdin, lambda question: _reply(question, given))
