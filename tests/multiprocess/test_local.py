"""The engine of local worker processes when all is well."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch

from programs import argument, collective, program, split
from samite.errors import BackendMissing, ConfigError, InputError, UnsupportedOp, WorkerDied, WorkerError
from samite.hal.engine import Engine, Workers
from samite.hal.program import Program, Result
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.local import Local, LocalWorkers, Plugin
from samite.runtime.lockstep import Lockstep

Start = Callable[..., LocalWorkers]
TWO = Mesh(("dp",), (2,))
FOUR = Mesh(("dp", "tp"), (2, 2))
OWED = Layout((), "sum", frozenset({"dp"}))


def sgd_program(mesh: Mesh = FOUR) -> Program:
    """loss = sum((x w)^2) with x split over dp and w over tp; w and a count of steps are replaced."""

    def step(
        x: torch.Tensor, w: torch.Tensor, count: torch.Tensor, lr: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x @ w
        loss = collective.all_reduce((y * y).sum(), "tp", "sum")
        gradient = collective.all_reduce(2 * x.T @ y, "dp", "sum")
        return loss, w - lr * gradient, count + 1

    return program(
        step,
        [
            argument("x", split(6, 4, dp=0)),
            argument("w", split(4, 6, tp=1), kind="state"),
            argument("count", split(), kind="state", dtype="int64"),
            argument("lr", Layout(()), kind="scalar"),
        ],
        [
            Result("loss", "float32", OWED),
            Result("w", "float32", split(4, 6, tp=1), alias=1),
            Result("count", "int64", split(), alias=2),
        ],
        mesh,
    )


def counting(mesh: Mesh, size: int = 4) -> Program:
    """One state that each step adds a number to; the result is its value before."""
    return program(
        lambda w, x: (w + x, w * 1),
        [argument("w", split(size), kind="state"), argument("x", split())],
        [Result("w", "float32", split(size), alias=0), Result("before", "float32", split(size))],
        mesh,
    )


@pytest.mark.parametrize("shared_memory", [True, False])
def test_steps_are_what_lockstep_says(start: Start, nothing_left: None, shared_memory: bool) -> None:
    given = sgd_program()
    engines: list[Workers] = [start(FOUR, shared_memory=shared_memory), Lockstep().start(FOUR, {})]
    w = torch.randn(4, 6)
    for workers in engines:
        workers.write(1, w, split(4, 6, tp=1))
        workers.write(2, torch.tensor(0), split())
        assert workers.load(given, {}) == 0
    for step in range(5):
        x = torch.randn(6, 4)
        for workers in engines:
            workers.run(0, [x, 1, 2, torch.tensor(0.01)], [3, 1, 2])
        for buffer in (3, 1):
            torch.testing.assert_close(engines[0].read(buffer), engines[1].read(buffer))
        assert engines[0].read(2).item() == step + 1
    engines[0].close()


def test_futures_are_two_steps_deep(start: Start) -> None:
    slow = program(
        lambda w, x: (torch.ops.misbehaving.slow(w, 0.2) + x, w * 1),
        [argument("w", split(2), kind="state"), argument("x", split())],
        [Result("w", "float32", split(2), alias=0), Result("before", "float32", split(2))],
        TWO,
    )
    workers = start(TWO)
    handle = workers.load(slow, {})
    workers.write(0, torch.zeros(2), split(2))
    began = time.monotonic()
    futures = [workers.run(handle, [0, torch.tensor(float(n))], [0, 10 + n]) for n in (1, 2)]
    assert time.monotonic() - began < 0.15, "two steps are told at once"
    assert not futures[0].done()
    futures.append(workers.run(handle, [0, torch.tensor(3.0)], [0, 13]))
    assert 0.15 < time.monotonic() - began < 0.35, "the third waits for the first"
    assert futures[0].done()
    assert workers.read(11).tolist() == [0.0, 0.0]
    assert not futures[2].done(), "reading what the first step made waits for no other"
    assert workers.read(13).tolist() == [3.0, 3.0]
    assert [future.done() for future in futures] == [True] * 3
    assert workers.read(0).tolist() == [6.0, 6.0]


def test_inputs_may_be_changed_once_run_returns(start: Start) -> None:
    workers = start(TWO)
    handle = workers.load(counting(TWO), {})
    workers.write(0, torch.zeros(4), split(4))
    x = torch.tensor(0.0)
    for n in range(1, 21):
        x.fill_(n)
        workers.run(handle, [0, x], [0, 1])
        x.fill_(1e6)
    assert workers.read(0)[0].item() == sum(range(21))


def test_buffers_are_written_read_and_freed_while_steps_are_under_way(start: Start) -> None:
    workers = start(TWO)
    handle = workers.load(counting(TWO), {})
    workers.write(0, torch.zeros(4), split(4))
    total = 0.0
    for n in range(30):
        workers.run(handle, [0, torch.tensor(1.0)], [0, 100 + n])
        total += 1
        if n % 7 == 3:
            workers.write(0, torch.full((4,), 50.0), split(4))
            total = 50.0
        if n % 5 == 2:
            assert workers.read(0)[0].item() == total
        if n >= 10:
            workers.free([90 + n])
    assert workers.read(129)[0].item() == total - 1
    with pytest.raises(InputError, match="no buffer 115"):
        workers.read(115)


def test_memory_is_used_again(start: Start) -> None:
    workers = start(TWO)
    size = 3 * 2**20
    handle = workers.load(counting(TWO, size), {})
    workers.write(0, torch.zeros(size), split(size))
    for n in range(40):  # 24 MB each: 1 GB if nothing were used again
        workers.run(handle, [0, torch.tensor(1.0)], [0, n + 1])
        workers.free([n]) if n else None
    assert workers.read(0)[0].item() == 40
    assert len(workers._arena.segments) == 1


def test_a_result_may_take_the_number_of_an_older_one(start: Start) -> None:
    workers = start(TWO)
    handle = workers.load(counting(TWO), {})
    workers.write(0, torch.zeros(4), split(4))
    for n in range(10):
        workers.run(handle, [0, torch.tensor(1.0)], [0, 1])
        assert workers.read(1)[0].item() == n


def test_many_frames(start: Start) -> None:
    """More states than a worker remembers the places of."""
    workers = start(TWO)
    handle = workers.load(counting(TWO), {})
    for buffer in range(100):
        workers.write(buffer, torch.full((4,), float(buffer)), split(4))
    for _ in range(2):
        for buffer in range(100):
            workers.run(handle, [buffer, torch.tensor(1.0)], [buffer, 1000])
    assert [workers.read(buffer)[0].item() for buffer in range(100)] == [buffer + 2 for buffer in range(100)]


def test_uneven_empty_and_large_values(start: Start) -> None:
    mesh = Mesh(("dp",), (3,))
    same = program(
        lambda x, y: (x * 1, y * 1),
        [argument("x", split(4, 2, dp=0)), argument("y", split(0, 2))],
        [Result("x", "float32", split(4, 2, dp=0)), Result("y", "float32", split(0, 2))],
        mesh,
    )
    workers = start(mesh)
    x = torch.randn(2, 4).T
    workers.run(workers.load(same, {}), [x, torch.zeros(0, 2)], [0, 1])
    assert torch.equal(workers.read(0), x)
    assert workers.read(1).shape == (0, 2)
    large = torch.randn(300, 2**18)
    workers.write(2, large, split(300, 2**18, dp=0))
    assert torch.equal(workers.read(2), large)


def test_programs_of_any_size_travel(start: Start) -> None:
    """A program larger than a packet."""

    def long(x: torch.Tensor) -> tuple[torch.Tensor]:
        for _ in range(1500):
            x = torch.sin(x)
        return (x,)

    workers = start(TWO)
    x = torch.ones(2)
    handle = workers.load(program(long, [argument("x", split(2))], [Result("y", "float32", split(2))], TWO), {})
    workers.run(handle, [x], [0])
    torch.testing.assert_close(workers.read(0), long(x)[0])


@pytest.mark.parametrize(
    ("arguments", "results", "message"),
    [
        ([0, torch.zeros(2)], [0, 1], r"float32\[2\], the program takes float32\[\]"),
        ([5, torch.tensor(0.0)], [5, 1], "no buffer 5"),
        ([7, torch.tensor(0.0)], [7, 1], "laid out as"),
        ([0, torch.tensor(0.0)], [3, 1], "one buffer"),
        ([0], [0, 1], "takes 2 arguments"),
        ([0, torch.tensor(0.0, device="meta")], [0, 1], "on meta"),
    ],
)
def test_calls_that_do_not_fit(start: Start, arguments: list[object], results: list[int], message: str) -> None:
    workers = start(TWO)
    handle = workers.load(counting(TWO), {})
    workers.write(0, torch.ones(4), split(4))
    workers.write(7, torch.ones(4), split(4, dp=0))
    with pytest.raises(InputError, match=message):
        workers.run(handle, arguments, results)  # type: ignore[arg-type]
    workers.run(handle, [0, torch.tensor(1.0)], [0, 1])
    assert workers.read(0).tolist() == [2.0] * 4


def test_an_op_that_workers_lack(start: Start) -> None:
    given = program(
        lambda x: (torch.ops.misbehaving.slow(x, 0.0),),
        [argument("x", split(2))],
        [Result("y", "float32", split(2))],
        TWO,
    )
    workers = start(TWO, worker_imports=())
    with pytest.raises(UnsupportedOp, match=r"misbehaving.*slow"):
        workers.load(given, {})
    handle = workers.load(counting(TWO), {})  # the workers are still of use
    workers.write(0, torch.ones(4), split(4))
    workers.run(handle, [0, torch.tensor(1.0)], [0, 1]).result()


def test_what_cannot_start(nothing_left: None) -> None:
    with pytest.raises(WorkerError, match="no_such_module") as caught:
        Local().start(TWO, {"worker_imports": "no_such_module"})
    assert "ModuleNotFoundError" in caught.value.remote_traceback
    with pytest.raises(BackendMissing, match="no_such_backend"):
        Local().start(Mesh(("dp",), (2,), ("no_such_backend",)), {})
    with pytest.raises(ConfigError, match='no option "worker_import"') as refused:
        Local().start(TWO, {"worker_import": ()})
    assert "worker_imports" in refused.value.help


def test_closed_workers_say_so(start: Start) -> None:
    workers = start(TWO)
    workers.write(0, torch.ones(2), split(2))
    workers.close()
    workers.close()
    for use in (lambda: workers.read(0), lambda: workers.write(0, torch.ones(2), split(2)), workers.restart):
        with pytest.raises(WorkerDied, match="closed"):
            use()


def test_a_fork_of_the_owner_is_refused_and_ends_nothing(start: Start) -> None:
    workers = start(TWO)
    workers.write(0, torch.ones(2), split(2))
    if not (child := os.fork()):
        try:
            workers.read(0)
        except WorkerDied as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert workers.read(0).tolist() == [1.0, 1.0]


def test_workers_that_nobody_holds_end(nothing_left: None) -> None:
    workers = Local().start(TWO, {})
    workers.write(0, torch.ones(2), split(2))
    del workers


def test_the_second_start_is_quick(start: Start) -> None:
    start(TWO).close()
    began = time.monotonic()
    start(TWO)
    assert time.monotonic() - began < 2.0


def test_worker_threads_and_directory(start: Start) -> None:
    with pytest.raises(ConfigError):
        Local().start(TWO, {"threads": 1})
    workers = start(TWO, threads_per_worker=3)
    for pid in workers._crew._pids:
        assert os.readlink(f"/proc/{pid}/cwd") == os.getcwd()


SCRIPT = """
import torch, samite
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.local import Local

print("main runs", flush=True)
workers = Local().start(Mesh(("dp",), (2,)), {})
workers.write(0, torch.arange(4.0), Layout.replicated((4,)))
print(workers.read(0).tolist())
"""


def test_a_script_needs_no_main_guard_and_leaves_nothing(tmp_path: object) -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "main runs\n[0.0, 1.0, 2.0, 3.0]\n"


def test_it_is_what_the_contracts_ask_for(start: Start) -> None:
    engine = Plugin().samite_add_engines()["local"]()
    assert isinstance(engine, Engine)
    assert engine.max_ranks == 16
    assert isinstance(start(TWO), Workers)
    pickle.dumps(counting(TWO))
