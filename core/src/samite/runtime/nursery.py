"""The owner's side of the zygote: starts it at the first use, has workers forked and ended. One a process."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from samite.errors import SamiteError, WorkerError
from samite.runtime.channel import Channel, pair

__all__ = ["Nursery", "nursery"]

START_TIMEOUT = 120.0  # seconds to import torch on a machine that has other things to do


class Nursery:
    """A zygote and its workers, which find the plugins of `backends` loaded. Thread-safe."""

    def __init__(self, backends: Sequence[str]) -> None:
        self._lock = threading.Lock()
        here, there = pair()
        # Every entry, in its order: workers import custom ops from where the user's program does.
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            # Threads of a library's own would make forking unsafe; workers set the number of torch's.
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        }
        # The child inherits the mask: Ctrl-C cannot hit it before it has said how it takes it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "samite.runtime.zygote", str(there.fileno()), *backends],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        self._channel = here
        self._ready = False
        self._requests = 0

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, channels: list[Channel]) -> list[int]:
        """One worker for each channel, which becomes the worker's and is closed here; their process ids."""
        fds = [channel.fileno() for channel in channels]
        try:
            return self._request("fork", fds=fds)
        finally:
            for channel in channels:
                channel.close()

    def end(self, pids: list[int]) -> dict[int, int]:
        """Kills those of the workers that still live; wait statuses of all that this is the first to ask for."""
        if not self.alive:
            return {}  # the workers died with their parent
        return self._request("end", pids)

    def close(self) -> None:
        """Ends the zygote, and with it every worker."""
        with self._lock:
            self._channel.close()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _request(self, *message: Any, fds: Sequence[int] = ()) -> Any:
        with self._lock:
            try:
                if not self._ready:
                    self._channel.receive(START_TIMEOUT)
                    self._ready = True
                self._requests += 1
                self._channel.send((self._requests, *message), fds)
                number, answer = 0, None
                while number != self._requests:  # an interrupt may have left the answer to an earlier request
                    (number, answer), _ = self._channel.receive(START_TIMEOUT)
            except (EOFError, OSError) as error:
                raise WorkerError(
                    f"the process that workers are forked from ended or hangs: {error}",
                    help="its standard error tells why; the next mesh starts another",
                ) from error
        if isinstance(answer, OSError):
            raise WorkerError(f"cannot fork a worker: {answer}", help="fewer workers, or a higher limit (ulimit -u)")
        return answer


_current: Nursery | None = None
_lock = threading.Lock()


def nursery(backends: Sequence[str] = ()) -> Nursery:
    """This process's nursery. Its zygote starts at the first call, which does not wait for it, and finds `backends`,
    so that workers of those start sooner; they may use others as well."""
    global _current
    with _lock:
        if _current is None or not _current.alive:
            if not sys.executable or not hasattr(os, "memfd_create"):
                raise SamiteError(
                    "local workers need Linux and the path of the Python interpreter (sys.executable)",
                    help='use engine="lockstep"',
                )
            _current = Nursery(backends)
            atexit.register(_close, _current, os.getpid())
        return _current


def _close(one: Nursery, owner: int) -> None:
    if os.getpid() == owner:  # not a process that was forked from the owner
        one.close()
