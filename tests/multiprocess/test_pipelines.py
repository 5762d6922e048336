"""Pipelines on real processes: the numbers of one device, whatever the schedule, and nobody waits for ever."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest
import torch

import samite
from lockstep_training import momentum, train_step
from models import GPT, batch
from samite import Shard
from samite.errors import WorkerDied
from samite.runtime.session import session_of

VOCAB, BLOCK = 17, 8
pytestmark = pytest.mark.timeout(120)  # which a pipeline that hangs would reach


def model() -> GPT:
    torch.manual_seed(0)
    return GPT(vocab=VOCAB, block=BLOCK, dim=16, heads=2, layers=4, tie=True)


def trained(axes: dict[str, int], steps: int = 3, **options: Any) -> tuple[list[float], list[float]]:
    """The losses on a mesh of processes and on one device."""
    there = model()
    here = copy.deepcopy(there)
    optimizers = [momentum(m.parameters()) for m in (there, here)]
    placements = {"inputs": {"dp": Shard(0)}, "targets": {"dp": Shard(0)}} if "dp" in axes else {}
    step = samite.compile(train_step, mesh=samite.mesh("cpu", **axes), placements=placements, **options)
    losses: tuple[list[float], list[float]] = ([], [])
    for seed in range(steps):
        given = batch(VOCAB, 8, BLOCK, seed)
        losses[0].append(step(there, optimizers[0], *given).item())
        losses[1].append(train_step(here, optimizers[1], *given).item())
    for name, want in here.state_dict().items():
        torch.testing.assert_close(torch.from_numpy(there.state_dict()[name].numpy()), want, rtol=1e-4, atol=1e-6)
    return losses


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble", "interleaved"])
def test_schedules(schedule: str) -> None:
    there, here = trained({"pp": 2}, microbatches=4, schedule=schedule)
    assert there == pytest.approx(here, rel=1e-5)


def test_with_data_parallelism_and_more_stages_than_microbatches() -> None:
    there, here = trained({"dp": 2, "pp": 3}, microbatches=2)
    assert there == pytest.approx(here, rel=1e-5)


def test_a_stage_that_dies_is_named_and_state_is_kept() -> None:
    there = model()
    optimizer, mesh = momentum(there.parameters()), samite.mesh("cpu", pp=2)
    step = samite.compile(train_step, mesh=mesh, microbatches=2)
    given = batch(VOCAB, 8, BLOCK)
    before = step(there, optimizer, *given).item()
    kept = {name: value.numpy().copy() for name, value in there.state_dict().items()}
    workers = session_of(mesh).start()
    os.kill(workers._crew._pids[1], signal.SIGKILL)  # pyright: ignore
    with pytest.raises(WorkerDied, match="rank 1"):
        step(there, optimizer, *given).item()
    for name, value in there.state_dict().items():
        assert (value.numpy() == kept[name]).all()
    assert step(there, optimizer, *given).item() < before


SCRIPT = """
import os, torch, samite
from lockstep_training import momentum, train_step
from models import GPT, batch

torch.manual_seed(0)
model = GPT(vocab=17, block=8, dim=16, heads=2, layers=4, tie=True)
optimizer = momentum(model.parameters())
step = samite.compile(train_step, mesh=samite.mesh("cpu", pp=2), microbatches=4)
losses = [step(model, optimizer, *batch(17, 8, 8, seed)).item() for seed in range(3)]
read = [float(p.detach().numpy().sum()) for p in model.parameters()]
open("rank" + os.environ["RANK"], "w").write(repr((losses, read)))
"""


def test_ranks_of_a_launcher(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    _, here = trained({"pp": 2}, microbatches=4)
    unit = Path(__file__).parent.parent / "unit"
    done = subprocess.run(
        [sys.executable, "-m", "samite", "run", "-n", "2", str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(unit), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    first, second = (literal_eval((tmp_path / f"rank{rank}").read_text()) for rank in range(2))
    assert first == second  # what one rank reads of another's stage is the same
    assert first[0] == pytest.approx(here, rel=1e-5)
