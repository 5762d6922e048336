"""The workspace keeps its own rules: every distribution is spelled one way, typed, and held by an import contract."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
IMPORTLINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


def contract(name: str) -> dict[str, Any]:
    [found] = [contract for contract in IMPORTLINTER["contracts"] if contract["id"] == name]
    return found


def test_there_are_plugins() -> None:
    assert PLUGINS


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_plugin_is_spelled_one_way(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    module = f"samite_{folder.name}"
    assert project["name"] == f"samite-{folder.name.replace('_', '-')}"
    assert (folder / "src" / module / "__init__.py").is_file()
    entry_points = {
        name: target
        for group, entries in project["entry-points"].items()
        if re.fullmatch(r"samite\.v\d+\.(backends|engines)", group)
        for name, target in entries.items()
    }
    assert folder.name in entry_points
    assert all(target.split(":")[0].split(".")[0] == module for target in entry_points.values())


@pytest.mark.parametrize("folder", [ROOT / "core", *PLUGINS], ids=lambda path: path.name)
def test_distribution_is_typed_described_and_licensed(folder: Path) -> None:
    [package] = (folder / "src").glob("samite*")
    assert (package / "py.typed").is_file()
    assert (folder / "README.md").read_text().strip()
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_plugin_is_held_by_the_contracts(folder: Path) -> None:
    module = f"samite_{folder.name}"
    assert module in IMPORTLINTER["root_packages"]
    assert module in contract("core")["forbidden_modules"]
    assert module in contract("backends")["source_modules"]


def test_backends_are_kept_from_every_layer_above_hal() -> None:
    levels = [re.findall(r"\w+", level) for level in contract("layers")["layers"]]
    hal = levels.index(["hal"])
    above = {f"samite.{name}" for level in levels[:hal] for name in level}
    there = {f"samite.{path.stem}" for path in (ROOT / "core/src/samite").iterdir()}
    assert set(contract("backends")["forbidden_modules"]) == above & there


def test_no_module_is_named_for_nothing() -> None:
    """A module is named for what it holds; `utils` holds what no one placed."""
    vague = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
    sources = [path for folder in ("core", "plugins") for path in (ROOT / folder).glob("**/src/**/*.py")]
    assert sources
    assert not [path for path in sources if path.name in vague]
