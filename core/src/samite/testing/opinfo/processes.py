"""Functions in forked processes: one child, or a rank for each of a mesh in one gloo group.

The calling process must have no threads at work.
"""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from datetime import timedelta
from typing import Any

from samite.mesh import Mesh
from samite.testing.opinfo.outcomes import Outcome

__all__ = ["in_child", "in_ranks"]

SECONDS = 30.0
"""Until ranks that are not done are ended."""

Work = Callable[[], Sequence[Outcome]]


def in_child(function: Work) -> list[Outcome]:
    """What `function` gives, run in a child: torch's caches are here as they were."""
    return _together([function], seconds=None)[0]


def in_ranks(mesh: Mesh, function: Callable[[Any], Outcome]) -> Outcome:
    """The gravest outcome of `function(device_mesh)` over the ranks. A rank that dies or hangs does not support it."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks: list[Work] = [lambda rank=rank: [function(_join(rank, mesh, store))] for rank in range(mesh.size)]
        outcomes = [found[0] for found in _together(ranks, SECONDS)]
    order = ("unsupported", "crashed", "wrong", "right")
    return min(outcomes, key=lambda outcome: order.index(outcome.verdict))


def _join(rank: int, mesh: Mesh, store: str) -> Any:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    there = dist.FileStore(store, mesh.size)
    wait = timedelta(seconds=SECONDS / 3)
    dist.init_process_group("gloo", store=there, rank=rank, world_size=mesh.size, timeout=wait)
    return init_device_mesh("cpu", mesh.shape, mesh_dim_names=mesh.axes)


def _together(works: Sequence[Work], seconds: float | None) -> list[list[Outcome]]:
    """What each gives, in a child of its own. None ends before all are done: they may be talking to each other."""
    children = [_fork(work) for work in works]
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        return [_hear(pipe, deadline) for _, pipe in children]
    finally:
        for pid, pipe in children:
            os.close(pipe)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _fork(work: Work) -> tuple[int, int]:
    """(process id, the pipe in which its outcomes come)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    os.close(read)
    try:
        outcomes = [*work()]
    except BaseException as error:  # whatever it is, the parent must hear of it
        outcomes = [Outcome("unsupported", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")]
    with os.fdopen(write, "w") as pipe:
        pipe.write(json.dumps([astuple(outcome) for outcome in outcomes]) + "\n")
        pipe.flush()
        signal.pause()  # the parent ends it
    os._exit(0)


def _hear(pipe: int, deadline: float | None) -> list[Outcome]:
    heard = b""
    while not heard.endswith(b"\n"):
        wait = None if deadline is None else max(deadline - time.monotonic(), 0)
        ready, _, _ = select.select([pipe], [], [], wait)
        more = os.read(pipe, 1 << 16) if ready else b""
        if not more:
            return [Outcome("unsupported", "a process died" if ready else f"ranks hang for {SECONDS:.0f} s")]
        heard += more
    return [Outcome(*fields) for fields in json.loads(heard)]
