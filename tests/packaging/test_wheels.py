"""What the wheels hold, and that they need what they say."""

from __future__ import annotations

import email
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Environment

pytestmark = pytest.mark.packaging


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


@pytest.mark.parametrize(
    ("name", "distribution", "package"),
    [("core", "samite", "samite"), ("cpu", "samite-cpu", "samite_cpu"), ("tiny", "samite-tiny", "samite_tiny")],
)
def test_a_wheel_holds_its_package_and_nothing_else(
    wheels: Mapping[str, Path], name: str, distribution: str, package: str
) -> None:
    assert metadata(wheels[name])["Name"] == distribution
    with zipfile.ZipFile(wheels[name]) as archive:
        tops = {entry.split("/")[0] for entry in archive.namelist()}
        entries = archive.namelist()
    assert tops == {package, f"{wheels[name].name.split('-py3')[0]}.dist-info"}
    assert f"{package}/__init__.py" in entries
    assert not [entry for entry in entries if "/tests/" in entry or entry.endswith((".pyc", ".pyi.orig"))]


@pytest.mark.parametrize("name", ["core", "cpu"])
def test_a_wheel_is_typed_and_licensed(wheels: Mapping[str, Path], name: str) -> None:
    with zipfile.ZipFile(wheels[name]) as archive:
        assert [entry for entry in archive.namelist() if entry.endswith("/py.typed")]
    assert metadata(wheels[name])["License-Expression"] == "Apache-2.0"
    assert metadata(wheels[name]).get_payload(), "the README is the long description"


def test_the_core_depends_on_no_backend(wheels: Mapping[str, Path]) -> None:
    required = [line.split()[0] for line in metadata(wheels["core"]).get_all("Requires-Dist", [])]
    assert not [name for name in required if name.startswith("samite")]
    assert any(name.startswith("samite") for name in metadata(wheels["cpu"]).get_all("Requires-Dist", []))


def test_the_core_works_alone(environment: Callable[..., Environment], wheels: Mapping[str, Path]) -> None:
    script = """
import json
from samite import plugins
from samite.errors import BackendMissing
try:
    plugins.driver("cpu")
except BackendMissing as error:
    print(json.dumps([str(error), {info.name: info.state for info in plugins.listing(["cpu"])}]))
"""
    error, states = environment(wheels["core"]).json(script)
    assert error == '"cpu" is not installed (installed: none)\n  help: pip install samite-cpu'
    engines = dict.fromkeys(("inprocess", "lockstep", "local"), "active")
    engines["torchrun"] = "unusable"  # no launcher started this process
    assert states == engines | {"cpu": "absent"}


def test_the_cpu_backend_is_found_and_imports_nothing_heavy(
    environment: Callable[..., Environment], wheels: Mapping[str, Path]
) -> None:
    script = """
import json, sys, samite
from samite import plugins
before = set(sys.modules)
import samite_cpu
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
(info,) = [info for info in plugins.listing() if info.name == "cpu"]
print(json.dumps([sorted(new), info.state, info.full_name, info.origin]))

import numpy, torch, samite.umem
buffer = samite.umem.alloc(1 << 20, "cpu")
torch.from_dlpack(buffer).fill_(3)
assert numpy.from_dlpack(buffer).sum() == 3 << 20
"""
    new, *info = environment(wheels["core"], wheels["cpu"]).json(script)
    assert set(new) <= {"samite", "samite_cpu", "pluggy"}
    assert "samite_cpu" in new
    assert info == ["active", "samite/cpu/v1", "samite-cpu 0.1.0"]
