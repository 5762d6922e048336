"""Records of a sweep in a JSON file, one entry of the database a line, so that a sweep can be taken up again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import samite
from samite.errors import ConfigError
from samite.testing.opinfo.record import Record, Tally
from samite.testing.opinfo.sweep import Effort

__all__ = ["Store"]


ROOT = Path(samite.__file__).parent
HARNESS = [
    Path(__file__).with_name(f"{name}.py")
    for name in ("calls", "database", "dtensor", "outcomes", "placements", "processes", "sweep")
]
"""What decides how DTensor does."""


class Store:
    """`records` by name, all made as `made_by` says. `dtensor` has what is known of DTensor beside them: it does not
    change with Samite."""

    def __init__(self, path: Path, made_by: dict[str, Any], records: dict[str, Record]) -> None:
        self.path, self.made_by, self.records = path, made_by, records
        self.dtensor: dict[str, Tally] = {}

    @staticmethod
    def read(path: Path) -> Store:
        """Raises ConfigError for a file that is not there, or is no store."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            records = [Record.from_json(r) for r in data["records"]]
            return Store(path, data["made_by"], {r.name: r for r in records})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} holds no sweep: {error}", help="make it: python -m samite.testing.opinfo"
            ) from error

    @staticmethod
    def resume(path: Path, effort: Effort) -> Store:
        """What the file has of this sweep. Of one by other code of Samite, it is what DTensor did; of one by another
        torch, another harness or effort, nothing."""
        wanted = {
            "torch": torch.__version__,
            "harness": _digest(HARNESS),
            **asdict(effort),
            "code": _digest(_core()),
        }
        made = Store(path, wanted, {})
        if not path.exists():
            return made
        found = Store.read(path)
        if found.made_by == wanted:
            return found
        if found.made_by | {"code": ""} == wanted | {"code": ""}:
            made.dtensor = {r.name: r.dtensor for r in found.records.values() if effort.dtensor}
        return made

    def add(self, record: Record) -> None:
        """Take in a record, with what is known of DTensor if it was not tried."""
        record.dtensor = self.dtensor.get(record.name, record.dtensor)
        self.records[record.name] = record

    def save(self, order: Iterable[str]) -> None:
        """Write the records in this order; a reader finds the old file or the new one."""
        lines = ",\n".join(json.dumps(self.records[n].to_json()) for n in order if n in self.records)
        text = f'{{"made_by": {json.dumps(self.made_by)}, "records": [\n{lines}\n]}}\n'
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, self.path)


def _core() -> list[Path]:
    """The core's source, less what only prints."""
    return [f for f in sorted(ROOT.rglob("*.py")) if f.relative_to(ROOT).parts[0] not in ("cli", "report")]


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:12]
