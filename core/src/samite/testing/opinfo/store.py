"""Records of a sweep in a JSON file, one entry of the database a line, so that a sweep can be taken up again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

import samite
from samite.errors import ConfigError
from samite.testing.opinfo.record import Record
from samite.testing.opinfo.sweep import Effort

__all__ = ["Store"]


class Store:
    """`records` by name. Those of another torch, of other code or of another effort are not taken up."""

    def __init__(self, path: Path, made_by: dict[str, Any], records: dict[str, Record]) -> None:
        self.path, self.made_by, self.records = path, made_by, records

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
        """What the file has of this sweep; nothing if it is of another one, or not there."""
        wanted = {"torch": torch.__version__, "code": _digest(), **asdict(effort)}
        if path.exists() and (found := Store.read(path)).made_by == wanted:
            return found
        return Store(path, wanted, {})

    def save(self, order: Iterable[str]) -> None:
        """Write the records in this order; a reader finds the old file or the new one."""
        lines = ",\n".join(json.dumps(self.records[n].to_json()) for n in order if n in self.records)
        text = f'{{"made_by": {json.dumps(self.made_by)}, "records": [\n{lines}\n]}}\n'
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, self.path)


@cache
def _digest() -> str:
    """Of the core's source, less what only prints."""
    root = Path(samite.__file__).parent
    files = [f for f in sorted(root.rglob("*.py")) if f.relative_to(root).parts[0] not in ("cli", "report")]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:12]
