"""Ranks that have left: each says so when its script ends, or its launcher says it, and those that wait look it up.

A rank that is late (it imports, it compiles) is waited for; one that has ended is not. Which of the two a silent rank
is, the launcher's store tells, also of ranks that never came to a mesh.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

__all__ = ["Departures", "attempt", "launcher_store", "tell_at_exit"]

FAREWELL = 2.0  # seconds that the end of a script may take to reach the store


class Departures:
    """Of the ranks that a launcher has started for the `attempt`th time, in the store that it keeps for them."""

    def __init__(self, store: Any, attempt: int) -> None:
        self._store, self._prefix = store, f"samite/left/{attempt}"

    def note(self, rank: int) -> None:
        """Say that a rank comes to nothing any more. RuntimeError if the store is gone."""
        self._store.set(f"{self._prefix}/{rank}", "")

    def among(self, ranks: Sequence[int]) -> list[int]:
        """Those of `ranks` that have left. RuntimeError if the store is gone."""
        return [rank for rank in ranks if self._store.check([f"{self._prefix}/{rank}"])]


def attempt() -> int:
    """How often a launcher has started these ranks again; it keeps its store when it does."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def launcher_store(timeout: float) -> Any:
    """The launcher's store, or rank 0's where the launcher has none, as torch's `env://` finds it."""
    from torch.distributed import rendezvous

    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
    return store


def tell_at_exit() -> None:
    """If this process is a rank of torchrun, have it say that it leaves when its script ends. `samite run` sees for
    itself, and no other launcher is known to keep a store that outlives rank 0."""
    environment = os.environ
    if "TORCHELASTIC_RUN_ID" in environment and environment.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        if not _below_a_rank():
            atexit.register(_tell, os.getpid())


def _below_a_rank() -> bool:
    """Whether this process was started by a rank, whose environment it has, and is none itself; also where that cannot
    be seen: a rank that is waited for in vain is better than one that is given up while it works."""
    try:
        inherited = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return True
    return any(variable.startswith(b"RANK=") for variable in inherited)


def _tell(rank_process: int) -> None:
    if os.getpid() == rank_process:  # not a process that was forked from it
        with contextlib.suppress(RuntimeError):  # the launcher has gone: nobody waits
            Departures(launcher_store(FAREWELL), attempt()).note(int(os.environ["RANK"]))
