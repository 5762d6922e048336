"""What backends compiled, kept on disk: the second start of a script finds it.

An entry is named by all that it depends on: the program, its options, the backend, the versions and the very files of
Samite and of the backend, torch, Python and the processor. It is a digest and what that is of; an entry that does not
fit its digest, or that another user could have written, is not there.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from samite.config import Settings
from samite.hal.program import Program

__all__ = ["WORTH_KEEPING", "Artifacts", "artifact_name"]

log = logging.getLogger("samite")

WORTH_KEEPING = 0.25  # seconds: what took less to compile is compiled again
LIMIT = 2 * 2**30  # bytes; the entries that were not used for longest go
DIGEST = hashlib.sha256().digest_size


class Artifacts:
    """The entries of a folder, made when the first is kept. None: nothing is kept or found."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def configured(cls) -> Artifacts:
        """The folder that the settings name: `cache_dir`."""
        chosen = Settings().cache_dir
        if chosen == "off":
            return cls(None)
        if chosen != "auto":
            return cls(Path(chosen).expanduser())
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(Path(base) / "samite")

    def get(self, name: str) -> bytes | None:
        """An entry, if it is there and whole."""
        if self.folder is None:
            return None
        path = self.folder / name
        try:
            with path.open("rb") as file:
                if not _is_ours(os.fstat(file.fileno())):
                    return None
                digest, artifact = file.read(DIGEST), file.read()
            if hashlib.sha256(artifact).digest() != digest:
                return None
            os.utime(path)
        except OSError:
            return None
        return artifact

    def put(self, name: str, artifact: bytes) -> None:
        """Keep an entry; a folder that cannot be written keeps none."""
        if self.folder is None:
            return
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, fresh = tempfile.mkstemp(dir=self.folder, suffix=".new")  # for its owner alone
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(artifact).digest() + artifact)
                os.replace(fresh, self.folder / name)
            except BaseException:
                os.unlink(fresh)
                raise
            self._prune()

    def refuse(self, name: str, error: Exception) -> None:
        """Drop an entry that does not load: what it needs has changed in a way that its name does not tell."""
        log.warning("what was compiled before does not load, and is compiled again: %s", error)
        if self.folder is not None:
            with suppress(OSError):
                (self.folder / name).unlink()

    def _prune(self) -> None:
        assert self.folder is not None
        entries = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(self.folder))
        held = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if held <= LIMIT:
                return
            os.unlink(path)
            held -= size


def artifact_name(program: Program, backend: str, driver: object, options: Mapping[str, Any]) -> str:
    """The name of the entry for what `driver` makes of a program."""
    package = type(driver).__module__.partition(".")[0]
    whole = (
        *(program.digest, backend, sorted(options.items()), _stamp("samite"), _stamp(package)),
        *(torch.__version__, sys.version, platform.machine(), torch.backends.cpu.get_cpu_capability()),
    )
    return hashlib.sha256(repr(whole).encode()).hexdigest()


def _is_ours(status: os.stat_result) -> bool:
    """A file of this user, which nobody else may write."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache
def _stamp(package: str) -> str:
    """The files of a package, by name, size and time: they change more often than its version."""
    folders = list(getattr(sys.modules.get(package), "__path__", ()))
    found = sorted(entry for folder in folders for entry in _files(folder))
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    for path in Path(folder).rglob("*.py"):
        status = path.stat()
        yield str(path), status.st_size, status.st_mtime_ns
