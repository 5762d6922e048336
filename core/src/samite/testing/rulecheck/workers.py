"""Checks in processes of their own, a sample at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from samite.errors import WorkerError
from samite.rules import rules
from samite.testing.rulecheck.checker import check_rules
from samite.testing.rulecheck.dtypes import samples_of_all_dtypes
from samite.testing.rulecheck.report import Finding, OpChecked, Report
from samite.testing.rulecheck.sample import Sample
from samite.testing.workers import Worker, answer, share

__all__ = ["check_all"]

SECONDS = 600.0
"""Of one sample, before its worker is ended."""


def check_all(samples: Sequence[Sample], processes: int, effort: dict[str, Any]) -> Iterator[Report]:
    """A report of each of these built-in samples, as they are done. `effort` are arguments of `check_rules`, as JSON.

    A kernel that crashes or hangs is what is wrong with its sample. With one process all is done in this one, and dies
    with it.
    """
    if processes == 1:
        for sample in samples:
            yield check_rules([sample.op], samples={sample.op: [sample]}, **effort)
        return

    def check(worker: Worker, sample: Sample) -> Report:
        number = samples_of_all_dtypes()[sample.op].index(sample)
        try:
            return Report.from_json(json.loads(worker.ask(f"{sample.op}\t{number}", SECONDS)))
        except WorkerError as error:
            rule = str(rules()[sample.op])
            wrong = Finding(sample.op, rule, str(sample), "", "", error.what)
            return Report({sample.op: OpChecked(rule, samples=1)}, [wrong])

    command = [sys.executable, "-m", "samite.testing.rulecheck.workers", json.dumps(effort)]
    yield from share(samples, check, command, processes)


def _reply(question: str, effort: dict[str, Any]) -> str:
    op, number = question.split("\t")
    report = check_rules([op], samples={op: [samples_of_all_dtypes()[op][int(number)]]}, **effort)
    return json.dumps(asdict(report))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    answer(sys.stdin, lambda question: _reply(question, given))
