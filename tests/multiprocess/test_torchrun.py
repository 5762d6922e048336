"""Ranks that a launcher starts: agreement among them, the engine, and `samite run`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from samite import plugins
from samite.errors import BackendUnusable, CollectiveMismatch, InputError, MeshError, SamiteError, WorkerDied
from samite.runtime.agreement import Agreement, Intent
from samite.runtime.departures import Departures
from samite.runtime.launch import run_script


def together(*acts: Callable[[Agreement], None]) -> list[SamiteError | None]:
    """What each rank's act raised, the ranks being threads."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    errors: list[SamiteError | None] = [None] * len(acts)

    def rank(number: int) -> None:
        store = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=10))
        try:
            acts[number](Agreement(dist.PrefixStore("test", store), number, len(acts), Departures(store, 0)))
        except SamiteError as error:
            errors[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_ranks_that_agree_go_on_and_leave_little_behind() -> None:
    kept: list[int] = []

    def act(agreement: Agreement) -> None:
        for n in range(20):
            agreement.reach(Intent(f"does {n}", (("x", n),), (n, 7), "last"), 10)
        kept.append(agreement._store.num_keys())

    assert together(act, act, act) == [None] * 3
    assert max(kept) < 3 * 3 + 5


@pytest.mark.parametrize(
    ("one", "other", "kind", "message"),
    [
        (Intent("reads w"), Intent('runs "step"'), CollectiveMismatch, r'rank \d (reads w|runs "step"), rank \d'),
        (Intent("a", (), (3, 5), "all_reduce"), Intent("a", (), (4, 5), "permute"), CollectiveMismatch, "last are"),
        (Intent("a", (("x", 1), ("y", 1))), Intent("a", (("x", 1), ("y", 2))), InputError, r"^y differs between ranks"),
        (Intent("a", (("x", 1),)), Intent("a"), CollectiveMismatch, r"^rank \d brings (x|nothing), rank \d (x|not)"),
    ],
)
def test_ranks_that_differ_are_told_so_at_once(
    one: Intent, other: Intent, kind: type[SamiteError], message: str
) -> None:
    def act(intent: Intent) -> Callable[[Agreement], None]:
        def reach(agreement: Agreement) -> None:
            agreement.reach(Intent("starts"), 10)
            agreement.reach(intent, 30)

        return reach

    began = time.monotonic()
    for error in together(act(one), act(other)):
        assert type(error) is kind
        assert re.search(message, error.what)
        assert error.help
    assert time.monotonic() - began < 5


def test_a_rank_that_says_nothing() -> None:
    def speaks(agreement: Agreement) -> None:
        with pytest.raises(CollectiveMismatch, match=r"rank 0 reads w, ranks \[1\] did nothing in 1 s") as caught:
            agreement.reach(Intent("reads w"), 1.0)
        assert "if rank == 0" in caught.value.help
        with pytest.raises(WorkerDied, match="went apart earlier"):
            agreement.reach(Intent("reads w"), 1.0)

    assert together(speaks, lambda agreement: None) == [None, None]


def test_a_rank_that_leaves() -> None:
    """Those that wait hear of it at once, and so do those that come later."""

    def waits(agreement: Agreement) -> None:
        agreement.reach(Intent("starts"), 10)
        time.sleep(agreement._rank * 0.2)
        with pytest.raises(WorkerDied, match=rf"rank 1 has left, rank {agreement._rank} reads w") as caught:
            agreement.reach(Intent("reads w"), 30)
        assert caught.value.rank == 1

    def leaves(agreement: Agreement) -> None:
        agreement.reach(Intent("starts"), 10)
        time.sleep(0.1)
        agreement.leave()

    assert together(waits, leaves, waits) == [None] * 3


def test_a_rank_that_is_late_is_waited_for_and_one_that_has_ended_is_not() -> None:
    def late(agreement: Agreement) -> None:
        time.sleep(1.0)
        agreement.reach(Intent("starts"), 10)
        agreement._departures.note(agreement._rank)  # what it said before counts
        time.sleep(1.0)

    def waits(agreement: Agreement) -> None:
        agreement.reach(Intent("starts"), 10)
        with pytest.raises(WorkerDied, match=r"rank 1 has left, rank \d reads w") as caught:
            agreement.reach(Intent("reads w"), 30)
        assert caught.value.rank == 1

    assert together(waits, late, waits) == [None] * 3


COMMON = """
import os, sys, time
import torch
sys.path[:0] = {path!r}
from programs import argument, collective, program, split
from samite.hal.program import Result
from samite.layout import Layout
from samite.mesh import Mesh
from samite.plugins import engine

RANK = int(os.environ["RANK"])
MESH = Mesh(("dp",), (2,), engine="torchrun")
workers = engine("torchrun").start(MESH, {{}})

def double():
    return program(lambda w, x: (w * 2 + x, collective.all_reduce(w.sum(), "dp", "sum")),
        [argument("w", split(3, dp=0), kind="state"), argument("x", split(3, dp=0))],
        [Result("w", "float32", split(3, dp=0), alias=0), Result("sum", "float32", split())], MESH)

handle = workers.load(double(), {{}})
"""
GOOD = """
from samite.plugins import driver
workers.write(0, torch.arange(3.0), split(3, dp=0))
expected = torch.arange(3.0)
for n in range(3):
    x = torch.full((3,), float(n))
    workers.run(handle, [0, x], [0, 1]).result()
    if n < 2 and RANK == 0:
        workers.read(1)  # every rank holds it: no other need read it
    assert workers.read(1).item() == expected.sum().item()
    expected = expected * 2 + x
    assert torch.equal(workers.read(0), expected), workers.read(0)
other = engine("torchrun").start(Mesh(("tp",), (2,), engine="torchrun"), {})
other.write(0, expected, split(3, tp=0))
assert torch.equal(other.read(0), expected)
try:
    engine("torchrun").start(Mesh(("dp",), (3,)), {})
except Exception as error:
    assert "3 ranks, this script runs as 2" in str(error)
os.write(1, " ".join(["rank", str(RANK), "of", os.environ["WORLD_SIZE"], *sys.argv[1:]]).encode() + b"\\n")
"""
ONE_SIDED = """
workers.write(0, torch.arange(3.0), split(3, dp=0))
workers.run(handle, [0, torch.ones(3)], [0, 1])
os.write(1, b"together\\n")
if RANK == 0:
    began = time.monotonic()
    try:
        workers.read(0)
    except Exception as error:
        print(f"{time.monotonic() - began:.0f} s", str(error).splitlines()[0], flush=True)
        sys.exit(5)
time.sleep(60)
"""
UNEQUAL = """
torch.manual_seed(RANK)
workers.write(0, torch.randn(3), split(3, dp=0))
workers.run(handle, [0, torch.ones(3)], [0, 1])
"""

PARTS = """
import os
import sys
import time
import samite
import torch
RANK, HOW = int(os.environ["RANK"]), sys.argv[1]
leave = os._exit if "abruptly" in HOW else sys.exit
if HOW.startswith("before") and RANK == 1:
    leave(0)
if HOW == "late" and RANK == 1:
    time.sleep(4)
if HOW.startswith("after another mesh"):
    assert samite.tensor(torch.ones(4), samite.mesh("cpu", tp=2), {"tp": samite.Shard(0)}).tolist() == [1.0] * 4
    if RANK == 1:
        leave(0)
double = samite.compile(lambda x: x * 2, mesh=samite.mesh("cpu", dp=2))
for n in range(4):
    if HOW == "between" and RANK == 1 and n == 3:
        raise SystemExit(0)
    double(torch.full((4,), float(n + RANK * (HOW == "other batch" and n == 3))))
"""


STARTED = """
def both(w):
    under_way = collective.start(w, "reduce_scatter", "dp", [0], [], "sum", 2, 0, [], -1)
    gathered = collective.all_gather(w * 2, "dp", 0, 2)
    return collective.wait(under_way), gathered

handle = workers.load(
    program(both, [argument("w", split(4))],
        [Result("a", "float32", split(4, dp=0)), Result("b", "float32", split(8))], MESH), {}
)
w = torch.arange(4.0)
workers.run(handle, [w], [0, 1]).result()
assert torch.equal(workers.read(0), w * 2), workers.read(0)
assert torch.equal(workers.read(1), torch.cat([w * 2, w * 2])), workers.read(1)
"""


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(COMMON.format(path=[p for p in sys.path if "tests" in p]) + text)
    return str(path)


def test_steps_and_reads(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_script(2, script(tmp_path, GOOD), ["a", "b"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["rank 0 of 2 a b", "rank 1 of 2 a b"]


def test_a_collective_is_under_way_while_another_takes_place(tmp_path: Path) -> None:
    assert run_script(2, script(tmp_path, STARTED)) == 0


@pytest.mark.slow
def test_under_torchrun_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run([*command, script(tmp_path, GOOD)], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


def test_a_one_sided_read_raises_in_5_s_and_its_rank_ends_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_script(2, script(tmp_path, ONE_SIDED)) == 5
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == ["together", "together"]
    assert lines[2].startswith("5 s rank 0 reads a value laid out as [3:dp], ranks [1] did nothing in 5 s")


def test_state_that_differs_between_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_script(2, script(tmp_path, UNEQUAL)) == 1
    assert "InputError: the value of float32[3] differs between ranks" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("before", 'WorkerDied: rank 1 has left, rank 0 starts the mesh "cpu dp=2"'),
        ("before, abruptly", 'WorkerDied: rank 1 has left, rank 0 starts the mesh "cpu dp=2"'),
        ("after another mesh", 'WorkerDied: rank 1 has left, rank 0 starts the mesh "cpu dp=2"'),
        ("after another mesh, abruptly", 'WorkerDied: rank 1 has left, rank 0 starts the mesh "cpu dp=2"'),
        ("between", 'WorkerDied: rank 1 has left, rank 0 runs "<lambda>"'),
        ("other batch", 'InputError: "x" differs between ranks'),
    ],
)
def test_ranks_that_part_after_they_agreed(
    how: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "parts.py"
    path.write_text(PARTS)
    assert run_script(2, str(path), [how]) == 1
    said = capfd.readouterr().err
    assert message in said  # not that it "did nothing in 60 s"
    assert "timed out" not in said


def test_a_slow_rank_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "parts.py"
    path.write_text(PARTS)
    assert run_script(2, str(path), ["late"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after another mesh"])
def test_ranks_of_torchrun_that_leave(how: str, tmp_path: Path) -> None:
    path = tmp_path / "parts.py"
    path.write_text(PARTS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run([*command, str(path), how], capture_output=True, text=True, timeout=50)
    assert result.returncode == 1
    assert 'WorkerDied: rank 1 has left, rank 0 starts the mesh "cpu dp=2"' in result.stderr


LEAVES = """
import os, subprocess, sys
if sys.argv[1] == "its child":
    subprocess.run([sys.executable, "-c", "import samite"], check=True)
    os._exit(0)
import samite
if sys.argv[1] == "its fork":
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    os._exit(0)
"""


@pytest.mark.parametrize(("who", "left"), [("itself", [1]), ("its child", []), ("its fork", [])])
def test_a_rank_of_torchrun_says_that_it_leaves_and_its_children_do_not(
    who: str, left: list[int], tmp_path: Path
) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rank = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    command = [sys.executable, str(tmp_path / "leaves.py"), who]
    done = subprocess.run(command, env=os.environ | rank | torchrun, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert Departures(store, 0).among([0, 1]) == left


def test_a_killed_launcher_ends_its_ranks(tmp_path: Path) -> None:
    path = tmp_path / "sleeps.py"
    path.write_text("import os, time\nos.write(1, b'%d\\n' % os.getpid())\ntime.sleep(60)\n")
    launch = "import sys; from samite.runtime.launch import run_script; sys.exit(run_script(2, sys.argv[1]))"
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        process = subprocess.Popen(
            [sys.executable, "-c", launch, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert process.stdout
        ranks = [int(process.stdout.readline()) for _ in range(2)]
        if number == signal.SIGTERM:
            process.terminate()
        else:
            os.killpg(process.pid, number)
        assert process.wait(10) == code
        assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks)


def test_a_rank_killed_by_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "dies.py"
    path.write_text("import os, time\nif os.environ['RANK'] == '1': os.abort()\ntime.sleep(60)\n")
    began = time.monotonic()
    assert run_script(2, str(path)) == 128 + signal.SIGABRT
    assert time.monotonic() - began < 5
    with pytest.raises(MeshError, match="0 ranks"):
        run_script(0, str(path))


def test_a_process_that_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(BackendUnusable, match="RANK"):
        plugins.engine("torchrun")
