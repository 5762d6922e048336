"""Wheels as a user gets them, and environments that hold those and nothing of this working tree."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

collect_ignore = ["tiny_backend"]  # its tests run where it is installed

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {"core": ROOT / "core", "cpu": ROOT / "plugins" / "cpu", "tiny": ROOT / "tests/packaging/tiny_backend"}


class Environment:
    """A virtual environment with the third-party packages of this one, linked, and Samite only as installed here."""

    def __init__(self, path: Path) -> None:
        venv.create(path, symlinks=True)
        self.path, self.python = path, path / "bin" / "python"
        here = Path(sysconfig.get_path("purelib", vars={"base": str(path), "platbase": str(path)}))
        for outer in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for entry in Path(outer).iterdir():
                if "samite" not in entry.name:
                    (here / entry.name).symlink_to(entry)

    def install(self, *wheels: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.python)]
        run([*pip, "install", "--quiet", "--no-index", "--no-deps", *map(str, wheels)])

    def run(self, *arguments: str) -> str:
        """Standard output of this environment's Python. Nothing of the test process's own path or settings is there."""
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "SAMITE"))
        }
        return run([str(self.python), *arguments], cwd=self.path, env=clean)

    def json(self, script: str) -> Any:
        """What `script` prints last, as JSON."""
        return json.loads(self.run("-c", script).splitlines()[-1])


def run(command: list[str], **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, **options)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(project: Path, target: Path) -> Path:
    """The wheel of a project, built without a download."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(target), str(project)])
    (wheel,) = target.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The wheels of `DISTRIBUTIONS`, built once, whichever of parallel test processes comes first."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with (shared / "wheels.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = {name: next((shared / f"wheel-{name}").glob("*.whl"), None) for name in DISTRIBUTIONS}
        return {name: wheel or build(DISTRIBUTIONS[name], shared / f"wheel-{name}") for name, wheel in built.items()}


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    """Makes a clean environment with the given wheels."""

    def make(*wheels: Path) -> Environment:
        made = Environment(tmp_path_factory.mktemp("environment"))
        made.install(*wheels)
        return made

    return make


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Builds the wheel of a backend made for a test: distribution, entry point group, name, and module source."""

    def make(distribution: str, group: str, name: str, source: str) -> Path:
        module = f"{distribution.replace('-', '_')}_module"
        project = tmp_path_factory.mktemp(distribution)
        (project / f"{module}.py").write_text(source)
        (project / "pyproject.toml").write_text(
            '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
            f'[project]\nname = "{distribution}"\nversion = "1.5"\n'
            f'[project.entry-points."{group}"]\n{name} = "{module}:Plugin"\n'
            f'[tool.hatch.build.targets.wheel]\nonly-include = ["{module}.py"]\n'
        )
        return build(project, project / "wheel")

    return make
