"""Meshes of real processes. All tests here are marked `multiprocess`."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed

from samite.mesh import Mesh
from samite.runtime import session
from samite.runtime.local import Local, LocalWorkers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # `misbehaving` is there, for this process and for workers, which search as it does
importlib.import_module("misbehaving")  # defines the ops that tests trace


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.multiprocess)


@pytest.fixture
def start() -> Iterator[Callable[..., LocalWorkers]]:
    """Starts workers of a mesh that know the misbehaving ops, and ends them with the test."""
    started: list[LocalWorkers] = []

    def start(mesh: Mesh, **options: object) -> LocalWorkers:
        workers = Local().start(mesh, {"worker_imports": ("misbehaving",), "threads_per_worker": 1, **options})
        started.append(workers)
        return workers

    yield start
    for workers in started:
        workers.close()


@pytest.fixture(autouse=True)
def sessions_end() -> Iterator[None]:
    """Sessions end with the test: equal meshes share one, and another test may end its workers otherwise."""
    yield
    for open_session in list(session._sessions.values()):
        open_session.close()


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """The test leaves behind no process that it started and no descriptor that it opened."""
    from samite.runtime.nursery import nursery

    # What is opened once a process, and stays: the zygote's channel, and a pipe of torch's store.
    nursery(("cpu",)).end([])
    torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    gc.collect()
    before, children = descriptors(), descendants(os.getpid())
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while descendants(os.getpid()) - children and time.monotonic() < deadline:
        time.sleep(0.02)
    assert descendants(os.getpid()) <= children
    assert descriptors() == before


def descriptors() -> list[str]:
    """What the open descriptors of this process are, in order."""
    found: list[str] = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}").partition(":[")[0])
        except OSError:
            continue  # the listing itself
    return sorted(found)


def descendants(pid: int) -> set[int]:
    """Living processes below a process."""
    found: set[int] = set()
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        for number in child.read_text().split():
            found |= {int(number)} | descendants(int(number))
    return {number for number in found if _alive(number)}


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
