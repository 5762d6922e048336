"""Values that only some ranks hold, on worker processes and among ranks that a launcher started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import samite
from programs import argument, program, split
from samite.hal.engine import Workers
from samite.hal.program import Result
from samite.layout import Layout
from samite.mesh import Mesh
from samite.runtime.launch import run_script
from samite.runtime.local import LocalWorkers
from samite.runtime.lockstep import Lockstep
from samite.runtime.session import session_of

Start = Callable[..., LocalWorkers]
MESHES = [Mesh(("pp", "dp"), (2, 2)), Mesh(("dp", "pp"), (2, 3)), Mesh(("pp",), (2,))]
GRID = MESHES[0]


def held_bytes(workers: LocalWorkers) -> int:
    return sum(workers._arena._sizes.values())


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_what_is_written_is_read_and_only_the_home_takes_memory(start: Start, mesh: Mesh) -> None:
    workers = start(mesh)
    texts = ["[5, 300]", *(["[5:dp, 300]", "[5, 300] sum(dp)", "[5, 300] max(dp)"] if "dp" in mesh else [])]
    for text in texts:
        for stage in range(mesh["pp"]):
            layout = Layout.parse(text).pinned({"pp": stage})
            value = torch.randn(5, 300)
            workers.write(1, value, layout.unpinned())
            everywhere = held_bytes(workers)
            workers.write(1, value, layout)
            assert held_bytes(workers) == everywhere // mesh["pp"] > 0
            torch.testing.assert_close(workers.read(1), value, rtol=0, atol=0)
            workers.free([1])
            assert held_bytes(workers) == 0


def test_state_that_steps_replace_stays_at_home(start: Start) -> None:
    layout, x_layout = split(4, dp=0).pinned({"pp": 1}), split(4).pinned({"pp": 1})
    adds = program(
        lambda w, x: (w + x[:2], w * 2),
        [argument("w", layout, kind="state"), argument("x", x_layout)],
        [Result("w", "float32", layout, alias=0), Result("twice", "float32", layout)],
        GRID,
    )
    local = start(GRID)
    engines: list[Workers] = [local, Lockstep().start(GRID, {})]
    w = torch.randn(4)
    for workers in engines:
        workers.load(adds, {})
        workers.write(1, w, layout)
    for _ in range(5):
        x = torch.randn(4)
        for workers in engines:
            workers.run(0, [1, x], [1, 2])
        torch.testing.assert_close(local.read(1), engines[1].read(1))
        torch.testing.assert_close(local.read(2), engines[1].read(2))
    for buffer in (1, 2):  # the next value's place is as large, on as many ranks
        assert {len(at.ranks) for at in local._buffers[buffer].locations} == {2}
    assert {place.location.ranks for place in local._programs[0][0]._inputs.values()} == {(2, 3)}


def test_eager_ops_of_the_driving_process() -> None:
    mesh = samite.mesh("cpu", engine="local", pp=2, options={"threads_per_worker": 1})
    try:
        x, value = samite.tensor(torch.arange(5.0), mesh), torch.arange(5.0)
        for stage in (0, 1):
            x.remote.send(x.remote.layout.pinned({"pp": stage}))
            x.mul_(3)
            value = value * 3
            torch.testing.assert_close((x + 1).full_tensor(), value + 1)
        x.remote.send(x.remote.layout.pinned({"pp": 0}))
        torch.testing.assert_close(x.full_tensor(), value)
    finally:
        session_of(mesh).close()


RANKS = """
import os, sys, time
import torch, samite
from samite import Shard
from samite.errors import CollectiveMismatch, LayoutError
from samite.runtime.session import session_of

RANK = int(os.environ["RANK"])
mesh = samite.mesh("cpu", pp=2, dp=2)
value = torch.arange(15.0).reshape(5, 3)

def pin(x, stage):
    x.remote.send(x.remote.layout.pinned({"pp": stage}))
    return x

def refuses(act):
    try:
        act()
    except LayoutError as error:
        return error.help
    raise AssertionError

for placements, part in (({"dp": Shard(0)}, (3, 3)), ({}, (5, 3))):
    x = pin(samite.tensor(value, mesh, placements), 1)
    for stage in (1, 0):
        pin(x, stage)
        local, layout = session_of(mesh).start().local(x.remote.number)
        assert tuple(local.shape) == (part if RANK // 2 == stage else (0,)), local.shape
        assert layout == x.distribution and layout.at == (("pp", stage),)
        x.remote._host = None
        assert torch.equal(x.remote.host(), value)
        assert torch.equal(x.full_tensor(), value)
        assert torch.equal(torch.tensor(x.tolist()), value)
        assert f"at pp={stage}" in repr(x) and x.distribution.at
    assert "redistribute" in refuses(x.to_local) and "unpinned" in refuses(lambda: x.placements)
    refuses(x.to_dtensor)
    torch.testing.assert_close((x * 2).full_tensor(), value * 2)
    assert not x.distribution.at
    x.to_local().add_(1)  # behind everybody's back, but in memory that is this rank's part
    pin(x, 1)
    torch.testing.assert_close(x.full_tensor(), value + 1)
    x.sub_(1)
    torch.testing.assert_close(pin(x, 0).redistribute({"pp": Shard(1)}).full_tensor(), value)
    torch.testing.assert_close(x.norm().item(), value.norm().item())

@samite.compile(mesh=mesh)
def scaled(w, x):
    w.mul_(2)
    return x @ w.t()

w = samite.tensor(value, mesh, {"dp": Shard(0)})
for time_ in (2, 4):
    pin(w, 1)
    torch.testing.assert_close(scaled(w, pin(x, 0)).full_tensor(), value @ (time_ * value).t())

samite.tensor(value, mesh)
x = pin(x, 0)
x.remote._host = None
os.write(1, b"done\\n")
if RANK == 3:
    began = time.monotonic()
    try:
        x.tolist()
    except CollectiveMismatch as error:
        os.write(1, f"{time.monotonic() - began:.0f} s\\n".encode())
        sys.exit(5)
time.sleep(60)
"""


def test_every_rank_reads_the_value_or_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "script.py"
    path.write_text(RANKS)
    assert run_script(4, str(path)) == 5, capfd.readouterr().err
    assert capfd.readouterr().out.splitlines() == ["done"] * 4 + ["5 s"]
