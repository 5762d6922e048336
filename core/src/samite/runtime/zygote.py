"""The process that workers are forked from: torch is loaded once, and the user's `__main__` never.

    python -m samite.runtime.zygote FD BACKEND...

It serves one owner over the channel FD, and ends when the owner does. It stays single-threaded, so that forking is
safe, and it is the parent of all workers: they die with it (PR_SET_PDEATHSIG), whatever they are doing.

| request (n counts them)   | answer                                                                      |
| (n, "fork") + descriptors | (n, pids): one worker for each descriptor, which is its end of a channel    |
| (n, "end", pids)          | (n, {pid: wait status}): killed where still alive; each status is told once |

An answer may be an OSError instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from samite.errors import SamiteError
from samite.runtime.channel import Channel

__all__ = ["main"]

PRELOADED = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch_mlir.ir",
    "torch_mlir.dialects.torch",
    "torch_mlir.extras.fx_importer",
    "samite.ir.dialect",
    "samite.lowering",
    "samite.plugins",
    "samite.runtime.worker",
)
_PR_SET_PDEATHSIG = 1


def main(fd: int, backends: Sequence[str]) -> None:
    """Loads what workers need and finds the plugins of `backends`, reports ("ready", pid), and serves."""
    # Ctrl-C in a terminal reaches every process of the group; only the owner decides what it means. The owner starts
    # this process with the signal blocked, so there is no moment at which it could strike.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    owner = os.getppid()
    channel = Channel.of(fd)
    for module in PRELOADED:
        importlib.import_module(module)
    _find(backends)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise SamiteError(f"the zygote has {threads} threads after its imports; forking it would not be safe")
    gc.collect()
    gc.freeze()  # so that no collection in a worker touches, and thereby copies, what all share
    channel.send(("ready", os.getpid()))
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while True:
        # A process that the owner forked may keep its end of the channel open, so look whether the owner is there.
        if not poll.poll(1000):
            if os.getppid() != owner:
                return
            continue
        try:
            (n, verb, *arguments), fds = channel.receive()
        except EOFError:
            return
        try:
            answer = _fork(channel, fds) if verb == "fork" else _end(*arguments)
        except OSError as error:
            answer = error
        channel.send((n, answer))


def _find(backends: Sequence[str]) -> None:
    """Loads plugins, which is light, so that no worker has to look for them. Their drivers are the workers' to make."""
    from samite import plugins

    for name in backends:
        with contextlib.suppress(SamiteError):  # raised again in the worker that asks for it
            plugins.hooks([name])


def _fork(channel: Channel, fds: list[int]) -> list[int]:
    pids: list[int] = []
    parent = os.getpid()
    try:
        for fd in fds:
            if pid := os.fork():
                pids.append(pid)
                continue
            for other in fds:
                if other != fd:
                    os.close(other)
            channel.close()
            _work(fd, parent)
    except OSError:
        _end(pids)
        raise
    finally:
        for fd in fds:
            os.close(fd)
    return pids


def _work(fd: int, parent: int) -> NoReturn:
    """The life of a worker."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # else it died before the call above took effect
            from samite.runtime.worker import serve

            serve(Channel.of(fd))
            status = 0
    finally:
        # Without the interpreter's shutdown: atexit handlers are the zygote's, and threads of gloo may still wait.
        sys.stderr.flush()
        os._exit(status)


def _end(pids: list[int]) -> dict[int, int]:
    statuses: dict[int, int] = {}
    for pid in pids:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
            if not found:
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
            statuses[pid] = status
        except ChildProcessError:  # ended before, and so reported
            continue
    return statuses


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
