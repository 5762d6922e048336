"""`samite.tensor` among processes that a launcher started, over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import samite
from samite import Shard
from samite.runtime.launch import run_script
from samite.runtime.session import session_of

COMMON = """
import os, sys, time
import torch, samite
import torch.nn.functional as F
from samite import Partial, Replicate, Shard
from torch import nn

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
"""
TRAINING = """
mesh = samite.mesh("cpu", dp=SIZE // 2, tp=2)

def train(model, x, y):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    for _ in range(3):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step(); optimizer.zero_grad()
    return [loss, norm, *model.parameters()]

model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 5))
x, y = torch.randn(8, 6), torch.randint(5, (8,))
import copy
expected = train(copy.deepcopy(model), x, y)
samite.distribute_module(model, mesh, {"0.*": {"tp": Shard(0)}, "3.weight": {"tp": Shard(1)}})
batch = {"dp": Shard(0)}
found = train(model, samite.tensor(x, mesh, batch), samite.tensor(y, mesh, batch))
for a, b in zip(found, expected, strict=True):
    torch.testing.assert_close(a.full_tensor().detach(), b.detach(), rtol=1e-4, atol=1e-5)

# A compiled step takes the same tensors where they are, and eager ops see what it wrote.
@samite.compile(mesh=mesh)
def scaled(weight, x):
    weight.mul_(2)
    return x @ weight.t()

weight, views = model[0].weight.detach(), model[0].weight.detach()[0]
before, held = weight.full_tensor().clone(), samite.tensor(x, mesh, batch)
out = scaled(weight, held)
torch.testing.assert_close(out.full_tensor(), x @ (2 * before).t())
torch.testing.assert_close((weight + 1).full_tensor(), 2 * before + 1)
torch.testing.assert_close((out * 2).full_tensor(), 2 * x @ (2 * before).t())
weight.sub_(1)
torch.testing.assert_close(scaled(weight, held).full_tensor(), x @ (4 * before - 2).t())

local = samite.from_local(torch.full((2, 3), 1.0 + RANK // 2), mesh, {"dp": Shard(0)})
assert local.sum().item() == 6 * sum(range(1, SIZE // 2 + 1))
os.write(1, b"done\\n")
"""
ONE_SIDED = """
mesh = samite.mesh("cpu", dp=SIZE)
x = samite.tensor(torch.arange(6.0), mesh, {"dp": Shard(0)})
os.write(1, f"{x}\\n".encode())
total = x.sum()
total.item()
if RANK == 0:
    began = time.monotonic()
    try:
        x.tolist()
    except samite.SamiteError as error:
        print(f"{time.monotonic() - began:.0f} s", str(error).splitlines()[0], flush=True)
        sys.exit(5)
time.sleep(60)
"""
OTHER_SHAPES = """
mesh = samite.mesh("cpu", dp=SIZE)
samite.tensor(torch.ones(3 + RANK), mesh, {"dp": Shard(0)})
"""
DTENSORS = """
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor, init_device_mesh
from torch.distributed.tensor import Shard as TorchShard, Replicate as TorchReplicate

dist.init_process_group("gloo")
there, mesh = init_device_mesh("cpu", (SIZE,), mesh_dim_names=("tp",)), samite.mesh("cpu", tp=SIZE)
x = torch.randn(4, 6)
dtensor = distribute_tensor(x, there, [TorchShard(0)]).requires_grad_()
mine = samite.Tensor.from_dtensor(dtensor)
assert mine.mesh == mesh and mine.placements == {"tp": Shard(0)}
assert mine.to_local().data_ptr() == dtensor.to_local().data_ptr()
back = (mine * 2).to_dtensor(there)
assert isinstance(back, DTensor) and back.placements == (TorchShard(0),)
torch.testing.assert_close(back.full_tensor(), 2 * x)
back.sum().backward()
torch.testing.assert_close(dtensor.grad.full_tensor(), torch.full_like(x, 2.0))
made = samite.tensor(x, mesh, {"tp": Shard(1)}).to_dtensor()
assert made.device_mesh.mesh_dim_names == ("tp",)
torch.testing.assert_close(made.full_tensor(), x)
uneven = distribute_tensor(torch.arange(5.0), there, [TorchShard(0)])
torch.testing.assert_close(samite.Tensor.from_dtensor(uneven).full_tensor(), torch.arange(5.0))
odd = samite.tensor(torch.arange(5.0), mesh, {"tp": Shard(0)}).to_dtensor()
torch.testing.assert_close(odd.full_tensor(), torch.arange(5.0))
for wrong in (lambda: mine + dtensor, lambda: samite.Tensor.from_dtensor(dtensor, samite.mesh("cpu", tp=SIZE, dp=1))):
    try:
        wrong()
    except samite.SamiteError as error:
        assert error.help
    else:
        raise AssertionError
dist.destroy_process_group()
os.write(1, b"done\\n")
"""
DTENSORS_OF_TWO_AXES = """
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor, init_device_mesh
from torch.distributed.tensor import Partial as P, Replicate as R, Shard as S

dist.init_process_group("gloo")
there, mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), samite.mesh("cpu", dp=2, tp=2)
uneven = torch.randn(5, 7)
for words in ([S(0), S(1)], [S(1), R()], [R(), S(0)], [R(), R()], [S(1), S(0)], [S(0), P()], [P(), S(1)], [P(), P()]):
    whole = distribute_tensor(uneven, there, [R() if w == P() else w for w in words])
    terms = whole.to_local() / 2 ** words.count(P())
    theirs = DTensor.from_local(terms, there, words, run_check=False, shape=(5, 7), stride=(7, 1))
    mine = samite.Tensor.from_dtensor(theirs, mesh)
    local, back = theirs.to_local(), mine.to_dtensor(there)
    assert back.placements == tuple(words)
    torch.testing.assert_close(mine.full_tensor(), uneven)
    torch.testing.assert_close(back.to_local(), local)
    if mine.to_local().shape == mine._local.shape:  # without padding neither way copies
        assert mine.to_local().data_ptr() == back.to_local().data_ptr() == local.data_ptr()
twice = distribute_tensor(torch.arange(8.0), there, [S(0), S(0)])
mine = samite.Tensor.from_dtensor(twice)
assert mine.placements == {"dp": Shard(0), "tp": Shard(0)} and mine.to_dtensor().placements == (S(0), S(0))
torch.testing.assert_close(mine.full_tensor(), torch.arange(8.0))
try:  # torch cuts what each level really has, so that the parts are others
    samite.Tensor.from_dtensor(distribute_tensor(torch.arange(5.0), there, [S(0), S(0)]))
except samite.SamiteError as error:
    assert "one axis splits" in error.help
else:
    raise AssertionError
dist.destroy_process_group()
os.write(1, b"done\\n")
"""
UNALIKE_SEEDS = """
mesh = samite.mesh("cpu", dp=SIZE)
torch.manual_seed(RANK)
samite.rand((4,), mesh)
"""


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(COMMON + text)
    return str(path)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_model_trains_and_meets_compiled_steps(ranks: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_script(ranks, script(tmp_path, TRAINING)) == 0, capfd.readouterr().err
    assert capfd.readouterr().out.splitlines() == ["done"] * ranks


def test_dtensors_in_and_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_script(2, script(tmp_path, DTENSORS)) == 0, capfd.readouterr().err
    assert capfd.readouterr().out.splitlines() == ["done"] * 2


def test_dtensors_of_two_axes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_script(4, script(tmp_path, DTENSORS_OF_TWO_AXES)) == 0, capfd.readouterr().err
    assert capfd.readouterr().out.splitlines() == ["done"] * 4


def test_a_one_sided_read_raises_in_5_s(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_script(2, script(tmp_path, ONE_SIDED)) == 5
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "samite.Tensor(shape=(6,), dtype=float32, layout=[6:dp], mesh=(cpu dp=2))"
    assert lines[-1].startswith("5 s rank 0 reads a value laid out as [6:dp], ranks [1] did nothing in 5 s")


def test_ranks_that_make_tensors_of_other_shapes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_script(2, script(tmp_path, OTHER_SHAPES)) == 1
    assert (
        "makes a tensor of float32[3] laid out as [3:dp], rank 1 makes a tensor of float32[4]" in capfd.readouterr().err
    )


def test_ranks_that_are_seeded_apart(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_script(2, script(tmp_path, UNALIKE_SEEDS)) == 1
    assert "the seed of torch's random numbers differs between ranks" in capfd.readouterr().err


def test_the_driving_process_records_for_local_workers() -> None:
    mesh = samite.mesh("cpu", engine="local", dp=2, options={"threads_per_worker": 1})
    try:
        x, w = torch.randn(6, 8), torch.randn(8, 4)
        batch = samite.tensor(x, mesh, {"dp": Shard(0)})
        weight, plain = samite.tensor(w, mesh, requires_grad=True), w.clone().requires_grad_()
        for rate in (0.1, 0.05):
            (batch @ weight).tanh().square().sum().backward()
            (x @ plain).tanh().square().sum().backward()
            with torch.no_grad():
                weight.sub_(weight.grad, alpha=rate)
                plain.sub_(plain.grad, alpha=rate)
            weight.grad = plain.grad = None
        torch.testing.assert_close(weight.full_tensor(), plain.detach())
        lost = samite.tensor(w, mesh).index_select(0, samite.tensor([99], mesh)) + 1
        with pytest.raises(samite.SamiteError, match="index") as caught:
            lost.tolist()
        assert "test_tensor.py" in caught.value.where
        torch.testing.assert_close((batch + 1).full_tensor(), x + 1)  # by new workers, from the last whole state
    finally:
        session_of(mesh).close()
