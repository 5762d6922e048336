"""Starting a script as several ranks on this machine: what `samite run` does, with torchrun's environment variables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from samite.errors import MeshError
from samite.runtime.departures import Departures

__all__ = ["run_script"]

GRACE = 5.0  # seconds between asking a rank to end and killing it
POLL = 0.05


def run_script(n: int, script: str, args: Sequence[str] = ()) -> int:
    """Runs `python script args` as ranks 0 to n-1, with inherited output. MeshError if n < 1.

    The exit code is 0, or that of the first rank that failed (128 + s if signal s killed it); its failure ends the
    others. One that ends well takes part in nothing any more, which those that wait for it hear. Ctrl-C is for the
    ranks to handle; those that have not ended some seconds after it are killed.
    """
    if n < 1:
        raise MeshError(f"{n} ranks", help="start one or more: samite run -n 2 train.py")
    from torch.distributed import TCPStore

    # Here, so that it outlives every rank; ranks join it as torchrun's do (TORCHELASTIC_USE_AGENT_STORE).
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "WORLD_SIZE": str(n),
        "LOCAL_WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "SAMITE_SPMD": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // n))),
    }
    ranks: list[subprocess.Popen[bytes]] = []
    before = signal.signal(signal.SIGTERM, _leave)  # the ranks are to end with this process
    try:
        for rank in range(n):
            environment = os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen([sys.executable, script, *args], env=environment))
        return _first_failure(ranks, store)
    except KeyboardInterrupt:
        # A terminal's Ctrl-C reached the ranks as well: let them end as they like, for a while.
        _wait(ranks, GRACE)
        return 128 + signal.SIGINT
    finally:
        _end(ranks)
        signal.signal(signal.SIGTERM, before)
        del store


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _first_failure(ranks: list[subprocess.Popen[bytes]], store: Any) -> int:
    """Until all have ended well, or one has not."""
    left: set[int] = set()
    departures = Departures(store, attempt=0)
    while True:
        codes = [process.poll() for process in ranks]
        for rank, code in enumerate(codes):
            if code:
                return code if code > 0 else 128 - code
            if code == 0 and rank not in left:
                left.add(rank)
                departures.note(rank)
        if None not in codes:
            return 0
        time.sleep(POLL)


def _wait(ranks: list[subprocess.Popen[bytes]], seconds: float) -> bool:
    """Whether all end within this time."""
    until = time.monotonic() + seconds
    while any(process.poll() is None for process in ranks):
        if time.monotonic() > until:
            return False
        time.sleep(POLL)
    return True


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for process in ranks:
        if process.poll() is None:
            process.terminate()
    if not _wait(ranks, GRACE):
        for process in ranks:
            process.kill()
            process.wait()
