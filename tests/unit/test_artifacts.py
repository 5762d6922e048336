"""What is kept of compiled programs: whole and our own, or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from programs import argument, program, split
from samite.errors import UnsupportedOp
from samite.hal.program import Program, Result
from samite.mesh import Mesh
from samite.runtime import artifacts, shared
from samite.runtime.artifacts import Artifacts, artifact_name
from samite.runtime.shared import Shared
from samite_cpu.driver import CpuDriver

MESH = Mesh(("dp",), (2,))


def a_program(by: float = 2.0) -> Program:
    return program(lambda x: (x * by,), [argument("x", split(4, 2))], [Result("y", "float32", split(4, 2))], MESH)


class Counting(CpuDriver):
    """Counts what it compiles and loads."""

    def __init__(self) -> None:
        self.compiled = self.loaded = 0

    def compile(self, program: Program, devices: Any, options: Any) -> Any:
        self.compiled += 1
        return super().compile(program, devices, options)

    def load(self, artifact: bytes, devices: Any) -> Any:
        self.loaded += 1
        return super().load(artifact, devices)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifacts:
    monkeypatch.setattr(shared, "WORTH_KEEPING", -1.0)
    return Artifacts(tmp_path / "kept")


def compiled(driver: CpuDriver, kept: Artifacts, given: Program, **options: Any) -> Any:
    return Shared(driver, "cpu", kept).compile(given, driver.devices()[:1], {"mode": "aten", **options})


def test_an_entry_is_what_was_put(kept: Artifacts) -> None:
    assert kept.get("a") is None
    kept.put("a", b"compiled")
    assert kept.get("a") == b"compiled"
    assert kept.folder is not None
    assert kept.folder.stat().st_mode & 0o077 == 0
    assert [path.name for path in kept.folder.iterdir()] == ["a"]


def test_nothing_is_kept_where_it_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_CACHE_DIR", "off")
    off = Artifacts.configured()
    off.put("a", b"compiled")
    assert off.get("a") is None
    monkeypatch.setenv("SAMITE_CACHE_DIR", "auto")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Artifacts.configured().folder == tmp_path / "samite"
    monkeypatch.setenv("SAMITE_CACHE_DIR", str(tmp_path / "mine"))
    assert Artifacts.configured().folder == tmp_path / "mine"


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = Artifacts(tmp_path / "file" / "kept")
    kept.put("a", b"compiled")
    assert kept.get("a") is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "writable"])
def test_a_damaged_entry_is_compiled_again(kept: Artifacts, damage: str) -> None:
    driver, given = Counting(), a_program()
    compiled(driver, kept, given)
    assert kept.folder is not None
    [path] = kept.folder.iterdir()
    content = path.read_bytes()
    if damage == "writable":
        path.chmod(0o666)
    else:
        path.write_bytes({"flip": content[:-1] + bytes([content[-1] ^ 1]), "cut": content[:-9], "empty": b""}[damage])
    compiled(driver, kept, given)
    assert (driver.compiled, driver.loaded) == (2, 0)
    compiled(driver, kept, given)
    assert (driver.compiled, driver.loaded) == (2, 1), "what was compiled again is kept"


def test_an_entry_that_does_not_load_is_compiled_again(kept: Artifacts, caplog: pytest.LogCaptureFixture) -> None:
    driver, given = Counting(), a_program()
    kept.put(artifact_name(given, "cpu", driver, {"mode": "aten"}), b"no pickle")
    compiled(driver, kept, given)
    assert (driver.compiled, driver.loaded) == (1, 1)
    assert "compiled again" in caplog.text
    compiled(driver, kept, given)
    assert (driver.compiled, driver.loaded) == (1, 2)


def test_what_is_loaded_computes_the_same(kept: Artifacts) -> None:
    driver, x = Counting(), torch.ones(2, 2)
    for _ in range(2):
        bound = compiled(driver, kept, a_program()).bind([], None, 0)
        outputs, _ = bound.run([x])
        assert torch.equal(outputs[0], x * 2)
    assert (driver.compiled, driver.loaded) == (1, 1)


def test_a_name_tells_programs_options_and_backends_apart() -> None:
    driver, given = CpuDriver(), a_program()
    names = {
        artifact_name(given, "cpu", driver, {"mode": "aten"}),
        artifact_name(given, "cpu", driver, {"mode": "inductor"}),
        artifact_name(given, "other", driver, {"mode": "aten"}),
        artifact_name(given, "cpu", object(), {"mode": "aten"}),
        artifact_name(a_program(3.0), "cpu", driver, {"mode": "aten"}),
    }
    assert len(names) == 5
    assert artifact_name(a_program(), "cpu", CpuDriver(), {"mode": "aten"}) in names


def test_what_compiles_quickly_or_cannot_be_saved_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Artifacts(tmp_path / "kept")
    compiled(Counting(), kept, a_program())
    assert not (tmp_path / "kept").exists()
    monkeypatch.setattr(shared, "WORTH_KEEPING", -1.0)

    class Unsaved(Counting):
        def compile(self, program: Program, devices: Any, options: Any) -> Any:
            made = super().compile(program, devices, options)
            monkeypatch.setattr(type(made), "save", lambda _: (_ for _ in ()).throw(UnsupportedOp("no")))
            return made

    compiled(Unsaved(), kept, a_program())
    assert not (tmp_path / "kept").exists()


def test_the_entries_unused_for_longest_go(kept: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "LIMIT", 300)
    for age, name in ((30, "old"), (20, "read"), (10, "new")):
        kept.put(name, bytes(100))
        assert kept.folder is not None
        path = kept.folder / name
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age))
    assert kept.get("read") is not None
    kept.put("last", bytes(100))
    assert {name for name in ("old", "read", "new", "last") if kept.get(name)} == {"read", "last"}
