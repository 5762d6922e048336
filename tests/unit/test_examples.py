"""The examples run, and their figures are those of plain PyTorch."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(script: Path) -> str:
    environment = {**os.environ, "SAMITE_ENGINE": "lockstep", "PYTHONWARNINGS": "error::UserWarning:__main__"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses_in(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]


@pytest.mark.parametrize("name", ["data_parallel", "tensor_parallel"])
def test_it_learns(name: str) -> None:
    losses = losses_in(output_of(EXAMPLES / f"{name}.py"))
    assert len(losses) == 6
    assert losses[-1] < losses[0] / 2


def test_the_diff_makes_the_plain_script_a_distributed_one(tmp_path: Path) -> None:
    """Three lines, and the figures stay."""
    (tmp_path / "examples").mkdir()
    script = shutil.copy(EXAMPLES / "plain.py", tmp_path / "examples")
    plain = output_of(Path(script))
    diff = EXAMPLES / "plain_to_samite.diff"
    subprocess.run(["git", "apply", str(diff)], cwd=tmp_path, check=True, timeout=30)
    changed = [line for line in diff.read_text().splitlines() if re.match(r"[+-](?![+-])\s*\S", line)]
    assert [line.split()[0] for line in changed] == ["+import", "+mesh", "+@samite.compile(mesh=mesh,"]
    distributed = output_of(Path(script))
    assert losses_in(distributed) == pytest.approx(losses_in(plain), abs=2e-4)
    assert distributed.splitlines()[-1].startswith("accuracy 0.9")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def train_gpt(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demo as a module, of a size that trains in a second."""
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it, and the module makes its console when loaded
    module = load("train_gpt")
    for name, value in {"BATCH": 4, "TIME": 16, "DIM": 16, "HEADS": 2, "LAYERS": 1}.items():
        assert hasattr(module, name)
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(sys, "argv", ["train_gpt.py", "--steps", "12", "--compared", "9", "--engine", "lockstep"])
    return module


def test_the_demo_prints_both_runs_and_a_sample(train_gpt: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_gpt.main() == 0
    shown = capsys.readouterr().out
    assert "train_step on cpu dp=2 tp=2 (4 ranks, engine lockstep)" in shown
    assert re.search(r"model\.blocks\..*\.up\.weight +64, 16 +0 +2 +tp: Shard\(0\)", shown)
    rows = re.findall(r"^ +(\d+) (\d\.\d{6}) (\d\.\d{6}) +\d\.\de[+-]\d\d", shown, re.M)
    assert [int(step) for step, *_ in rows] == [1, 2, 9]
    assert all(float(one) == pytest.approx(float(other), abs=1e-4) for _, one, other in rows)
    assert re.search(r"^sample: '    def ", shown, re.M)


def test_the_demo_fails_if_the_runs_differ(
    train_gpt: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = train_gpt.train

    def train_wrongly(title: str, step: object, model: torch.nn.Module, *rest: object) -> tuple[list[float], float]:
        if title == "one device":
            with torch.no_grad():
                model.head.weight.mul_(1.01)  # type: ignore[union-attr]
        return train(title, step, model, *rest)

    monkeypatch.setattr(train_gpt, "train", train_wrongly)
    assert train_gpt.main() == 1
    message = r"^the losses of the mesh and of one device differ by \d\.\de-0\d, more than 0\.0001$"
    assert re.search(message, capsys.readouterr().err, re.M)


def test_the_demo_reads_text() -> None:
    module = load("train_gpt")
    text = module.source_text(limit=5000)
    assert text.shape == (5000,)
    assert text.dtype == torch.int64
    assert 0 < int(text.min()) <= int(text.max()) < module.VOCABULARY
    tokens, targets = module.batch(text, 3)
    assert tokens.shape == targets.shape == (module.BATCH, module.TIME)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert torch.equal(tokens, module.batch(text, 3)[0])
    assert not torch.equal(tokens, module.batch(text, 4)[0])
