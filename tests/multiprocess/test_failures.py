"""What goes wrong among local workers: it raises in the caller in seconds, leaves nothing, and state stays usable."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from misbehaving import ALTERED, LAST, SKIPPED

from programs import argument, collective, program, split
from samite.errors import CollectiveMismatch, OutOfMemory, SamiteError, WorkerDied, WorkerError
from samite.hal.program import Program, Result
from samite.mesh import Mesh
from samite.runtime.local import LocalWorkers

Start = Callable[..., LocalWorkers]
Body = Callable[..., torch.Tensor]
FOUR = Mesh(("dp", "tp"), (2, 2))
TWO = Mesh(("dp", "tp"), (2, 1))


def updating(body: Body, mesh: Mesh = FOUR, size: int = 4) -> Program:
    """Adds `body(w, x)` to the state w. A first state counts steps: it is written before anything can go wrong."""
    return program(
        lambda count, w, x: (count + 1, w + body(w, x)),
        [argument("count", split(1), kind="state"), argument("w", split(size), kind="state"), argument("x", split())],
        [Result("count", "float32", split(1), alias=0), Result("w", "float32", split(size), alias=1)],
        mesh,
    )


def begin(workers: LocalWorkers, given: Program, size: int = 4) -> int:
    workers.write(0, torch.zeros(1), split(1))
    workers.write(1, torch.zeros(size), split(size))
    return workers.load(given, {})


def step(workers: LocalWorkers, handle: int, x: float = 1.0) -> None:
    workers.run(handle, [0, 1, torch.tensor(x)], [0, 1]).result()


def state(workers: LocalWorkers) -> tuple[float, float]:
    return workers.read(0).item(), workers.read(1)[0].item()


@contextmanager
def seconds(limit: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < limit


def reduced(x: torch.Tensor) -> torch.Tensor:
    return collective.all_reduce(x, "dp,tp", "max")


def slow_and_reduced(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return reduced(torch.ops.misbehaving.slow(x, 0.4) + 0 * w)


def goes_on(workers: LocalWorkers, handle: int, expected: tuple[float, float]) -> None:
    """State is what the last complete step left; work is refused until a restart, and then goes on from there."""
    assert state(workers) == expected
    for use in (lambda: step(workers, handle), lambda: workers.load(updating(slow_and_reduced), {})):
        with pytest.raises(WorkerDied, match="have ended") as caught:
            use()
        assert "restart" in caught.value.help
    workers.restart()
    assert state(workers) == expected


@pytest.mark.parametrize("shared_memory", [True, False])
def test_sigkill_in_mid_step(start: Start, nothing_left: None, shared_memory: bool) -> None:
    workers = start(FOUR, shared_memory=shared_memory)
    handle = begin(workers, updating(slow_and_reduced))
    step(workers, handle)
    pids = list(workers._crew._pids)
    futures = [workers.run(handle, [0, 1, torch.tensor(1.0)], [0, 1]) for _ in range(2)]
    time.sleep(0.2)  # the first state is written, the second waits for its peers
    os.kill(pids[2], signal.SIGKILL)
    with seconds(2.0), pytest.raises(WorkerDied, match="rank 2 was killed by SIGKILL") as caught:
        futures[1].result()
    assert caught.value.rank == 2
    with pytest.raises(WorkerDied, match="rank 2"):
        futures[0].result()
    assert all(future.done() for future in futures)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    goes_on(workers, handle, (1.0, 1.0))
    step(workers, handle)
    assert state(workers) == (2.0, 2.0)
    with pytest.raises(WorkerDied, match="rank 2"):
        futures[0].result()
    workers.close()


@pytest.mark.parametrize("victim", [0, 3])
def test_a_kill_between_steps_is_met_by_the_next(start: Start, victim: int) -> None:
    workers = start(FOUR)
    handle = begin(workers, updating(slow_and_reduced))
    step(workers, handle)
    os.kill(workers._crew._pids[victim], signal.SIGTERM)
    time.sleep(0.2)
    with seconds(2.0), pytest.raises(WorkerDied, match=f"rank {victim} was killed by SIGTERM"):
        step(workers, handle)
    goes_on(workers, handle, (1.0, 1.0))


def test_the_death_of_the_zygote(start: Start) -> None:
    workers = start(TWO)
    handle = begin(workers, updating(slow_and_reduced, TWO))
    future = workers.run(handle, [0, 1, torch.tensor(1.0)], [0, 1])
    workers._crew._nursery._process.kill()
    with seconds(2.0), pytest.raises(WorkerDied, match="is gone"):
        future.result()
    workers.restart()
    step(workers, handle)
    assert state(workers) == (1.0, 1.0)


@pytest.mark.parametrize("rank", [0, 3])
def test_an_exception_in_one_rank(start: Start, rank: int) -> None:
    def body(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return reduced(torch.ops.misbehaving.raises(x, collective.axis_index("dp,tp"), rank) + 0 * w)

    workers = start(FOUR)
    handle = begin(workers, updating(body))
    with seconds(2.0), pytest.raises(WorkerError, match="a kernel that cannot") as caught:
        step(workers, handle)
    assert type(caught.value) is WorkerError
    assert caught.value.rank == rank
    assert "misbehaving.raises" in caught.value.what
    assert "ArithmeticError" in caught.value.remote_traceback
    assert "misbehaving_raises_default(" in caught.value.remote_traceback, "the generated line"
    goes_on(workers, handle, (0.0, 0.0))


def test_an_exception_in_all_ranks(start: Start) -> None:
    workers = start(FOUR)
    handle = begin(workers, updating(lambda w, x: w.index_select(0, x.long().reshape(1).expand(4)) + x))
    step(workers, handle, 3.0)
    with seconds(2.0), pytest.raises(WorkerError, match=r"index_select.*out of range"):
        step(workers, handle, 4.0)
    goes_on(workers, handle, (1.0, 3.0))


def test_a_rank_that_exits(start: Start) -> None:
    def body(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return reduced(torch.ops.misbehaving.exits(x, collective.axis_index("dp,tp"), 1) + 0 * w)

    workers = start(FOUR)
    handle = begin(workers, updating(body))
    with seconds(2.0), pytest.raises(WorkerDied, match="rank 1 ended with status 3"):
        step(workers, handle)
    goes_on(workers, handle, (0.0, 0.0))


@pytest.mark.parametrize("after_a_fork", [False, True])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_rank_that_exits_as_if_all_were_well(start: Start, shared_memory: bool, after_a_fork: bool) -> None:
    """Also where a process that it forked lives on, and holds the worker's end of the channel."""

    def body(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        index = collective.axis_index("dp,tp")
        return reduced(torch.ops.misbehaving.exits_well(x, index, 1, after_a_fork) + 0 * w)

    workers = start(FOUR, shared_memory=shared_memory)
    handle = begin(workers, updating(body))
    with seconds(2.0), pytest.raises(WorkerDied, match="rank 1 ended with status 0") as caught:
        step(workers, handle)
    assert caught.value.rank == 1
    goes_on(workers, handle, (0.0, 0.0))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (SKIPPED, r"rank 0 asks for all_reduce sum over dp of float32\[101\], rank 1 for all_reduce min"),
        (ALTERED, r"rank 0 asks for all_reduce sum over dp of float32\[102\], rank 1 for all_reduce max"),
        (LAST, r"rank 0 asks for all_reduce sum over dp of float32\[103\], rank 1 has ended the step"),
    ],
)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_collectives_that_differ(start: Start, size: int, message: str, shared_memory: bool) -> None:
    def body(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        whole = collective.all_reduce(w + x, "dp", "sum")
        return whole if size == LAST else whole + collective.all_reduce(x, "dp", "min")

    workers = start(TWO, shared_memory=shared_memory)
    handle = begin(workers, updating(body, TWO, size), size)
    with seconds(3.0), pytest.raises(CollectiveMismatch, match=message):
        step(workers, handle)
    goes_on(workers, handle, (0.0, 0.0))


def test_full_shared_memory(start: Start) -> None:
    """What cannot be made raises, and nothing has happened."""
    workers = start(TWO)
    handle = begin(workers, updating(slow_and_reduced, TWO))
    step(workers, handle)
    large = program(
        lambda x: (x.expand(2**27) + 1,),
        [argument("x", split(1))],
        [Result("y", "float32", split(2**27))],
        TWO,
    )
    wide = workers.load(large, {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        with pytest.raises(OutOfMemory, match="shared memory") as caught:
            workers.write(5, torch.zeros(2**27), split(2**27))
        assert "ulimit" in caught.value.help
        with pytest.raises(OutOfMemory):
            workers.run(wide, [torch.zeros(1)], [6])
        assert state(workers) == (1.0, 1.0)
        step(workers, handle)
        assert state(workers) == (2.0, 2.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for buffer in (5, 6):
        with pytest.raises(SamiteError, match="no buffer"):
            workers.read(buffer)


def test_a_worker_out_of_memory(start: Start) -> None:
    def body(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return w + x.expand(2**46).clone()[:1]

    workers = start(TWO)
    handle = begin(workers, updating(body, TWO))
    with seconds(3.0), pytest.raises(OutOfMemory, match=r"aten\.clone") as caught:
        step(workers, handle)
    assert "on rank" in caught.value.__notes__[0]
    assert state(workers) == (0.0, 0.0)


def test_an_interrupt_while_waiting_ends_nothing(start: Start) -> None:
    workers = start(TWO)
    handle = begin(workers, updating(slow_and_reduced, TWO))
    future = workers.run(handle, [0, 1, torch.tensor(1.0)], [0, 1])
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            future.result()
    finally:
        signal.signal(signal.SIGALRM, before)
    future.result()
    assert state(workers) == (1.0, 1.0)


SCRIPT = """
import os, signal, sys, time
import torch
sys.path[:0] = {path!r}
import misbehaving
from test_failures import TWO, begin, slow_and_reduced, updating
from samite.runtime.local import Local

workers = Local().start(TWO, {{"worker_imports": ("misbehaving",)}})
handle = begin(workers, updating(slow_and_reduced, TWO))
futures = [workers.run(handle, [0, 1, torch.tensor(1.0)], [0, 1]) for _ in range(2)]
print(*workers._crew._pids, workers._crew._nursery._process.pid, flush=True)
{ending}
"""


def script(ending: str) -> subprocess.Popen[str]:
    """A process with two steps under way, in a group of its own. It prints the pids of its descendants."""
    text = SCRIPT.format(path=[p for p in sys.path if "tests" in p], ending=ending)
    return subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def gone(pids: list[int], limit: float) -> bool:
    until = time.monotonic() + limit
    while time.monotonic() < until:
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_ctrl_c_leaves_nothing() -> None:
    process = script("futures[1].result(); time.sleep(60)")
    assert process.stdout
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 3
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    with seconds(5.0):
        _, errors = process.communicate(timeout=10)
    assert process.returncode != 0  # -SIGINT, or 1 where Python does not end itself by the signal
    assert errors.count("KeyboardInterrupt") == 1, errors
    assert gone(pids, 2.0)


def test_an_owner_that_is_killed_leaves_nothing() -> None:
    """Though a fork of it survives, and holds its ends of all channels."""
    process = script("os.fork() or (time.sleep(8), os._exit(0)); os.kill(os.getpid(), signal.SIGKILL)")
    assert process.stdout
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 3
    assert gone(pids, 4.0)
    process.communicate(timeout=20)


def test_an_exception_in_the_script_leaves_nothing() -> None:
    process = script("raise ValueError('the script')")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the script" in errors
    assert "WorkerDied" not in errors


def test_refused_steps_keep_no_memory(start: Start) -> None:
    workers = start(TWO)
    handle = workers.load(
        program(lambda x: (x + 1,), [argument("x", split())], [Result("y", "float32", split())], TWO), {}
    )
    workers.run(handle, [torch.zeros(())], [0]).result()
    os.kill(workers._crew._pids[0], signal.SIGKILL)
    for _ in range(5):
        with pytest.raises(WorkerDied):
            workers.run(handle, [torch.zeros(())], [1]).result()
    workers.restart()
    held = len(workers._arena._sizes)
    workers.run(handle, [torch.zeros(())], [1]).result()
    assert len(workers._arena._sizes) <= held + 2  # the result, and the second place of the input
    assert workers.read(1).item() == 1
