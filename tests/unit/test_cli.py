"""The command line: help, doctor, run, errors, and what plugins add."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner, Result

from samite import plugins
from samite.cli import doctor, extensions
from samite.cli.app import app
from samite.cli.doctor import diagnose
from samite.config import Settings
from samite.errors import LayoutError, WorkerError
from samite.hal import hookimpl


@pytest.fixture(autouse=True)
def _nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file or variable of the machine has a say, and no test sees the plugins of another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for field in Settings.model_fields:
        monkeypatch.delenv(f"SAMITE_{field.upper()}", raising=False)
    extensions._asked.cache_clear()
    yield
    extensions._asked.cache_clear()


@pytest.fixture
def register() -> Iterator[Callable[[str, object], None]]:
    added: list[str] = []

    def add(name: str, plugin: object) -> None:
        plugins.register(name, plugin)
        added.append(name)

    yield add
    for name in added:
        plugins.unregister(name)


def samite(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_help_names_every_command() -> None:
    done = samite("--help")
    assert done.exit_code == 0
    for command in ("doctor", "explain", "run"):
        assert re.search(rf"\b{command}\b", done.stdout)


def test_no_arguments_show_the_help() -> None:
    assert "doctor" in samite().stdout


def test_an_unknown_command_is_refused() -> None:
    done = samite("doktor")
    assert done.exit_code == 2
    assert "doktor" in done.stderr


# doctor


def test_doctor_tabulates_plugins_devices_settings_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_TIMEOUT_S", "7.5")
    Path("samite.toml").write_text('bucket_bytes = "1MiB"\n')
    done = samite("doctor")
    assert done.exit_code == 0, done.output
    assert re.search(r"^cpu +backend +active +samite/cpu/v1 +samite-cpu ", done.stdout, re.M)
    assert re.search(r"^lockstep +engine +active +samite/lockstep/v1 +samite ", done.stdout, re.M)
    assert re.search(r"^cpu:0 .*B/s +\d+\.\d\d µs .*shared memory", done.stdout, re.M)
    assert re.search(r"^timeout_s +7\.5 +SAMITE_TIMEOUT_S\b", done.stdout, re.M)
    assert re.search(rf"^bucket_bytes +1048576 +{re.escape(str(Path('samite.toml').resolve()))}", done.stdout, re.M)
    for setting in Settings.model_fields:
        assert re.search(rf"^{setting} ", done.stdout, re.M)
    assert re.search(r"python 3\.\d+.* torch \d.* torch-mlir \d", done.stdout)
    assert done.stdout.rstrip().endswith("Ready.")


@pytest.mark.parametrize("variable", ["SAMITE_BACKENDS", "SAMITE_ENGINE"])
def test_doctor_reports_what_is_configured_and_absent(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "warp_drive")
    done = samite("doctor")
    assert done.exit_code == 1
    kind = "backend" if variable == "SAMITE_BACKENDS" else "engine"
    assert re.search(rf"^warp_drive +{kind} +absent .*pip install samite-warp-drive", done.stdout, re.M)
    assert "Not ready." in done.stdout
    assert "warp_drive is absent" in done.stdout


def test_doctor_reports_why_a_backend_is_unusable(register: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    register("broken", Broken())
    assert samite("doctor").exit_code == 0  # it is not configured
    monkeypatch.setenv("SAMITE_BACKENDS", "cpu,any/broken/v1")
    done = samite("doctor")
    assert done.exit_code == 1
    assert re.search(r"^broken +backend +unusable .*no driver for this kernel", done.stdout, re.M)


def test_doctor_survives_a_driver_that_cannot_list_devices(register: Any) -> None:
    register("blind", Blind())
    found = diagnose(Settings())
    assert [problem for problem in found.problems if "RuntimeError: the bus is on fire" in problem]
    assert any(backend == "cpu" for backend, _ in found.devices)


def test_doctor_misses_devices_only_where_they_are_wanted(register: Any) -> None:
    register("empty", Empty())
    assert not diagnose(Settings()).problems
    assert diagnose(Settings(backends=("empty",))).problems == ("empty has no device here",)


def test_doctor_says_what_is_wrong_with_the_configuration() -> None:
    Path("samite.toml").write_text("bucket_byts = 3\n")
    done = samite("doctor")
    assert done.exit_code == 1
    assert done.stderr.startswith('ConfigError: unknown key "bucket_byts"')
    assert 'did you mean "bucket_bytes"' in done.stderr


def test_a_package_that_is_missing_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PACKAGES", ("samite", "no-such-distribution"))
    assert ("no-such-distribution", "not installed") in diagnose(Settings()).versions


# errors


def failing(error: Exception) -> type:
    class Plugin:
        @hookimpl
        def samite_add_commands(self) -> Mapping[str, Callable[..., None]]:
            def fail() -> None:
                raise error

            return {"fail": fail}

    return Plugin


def test_an_error_is_a_message_and_not_a_traceback(register: Any) -> None:
    error = LayoutError("mm: dim k is split", where="train.py:41", help="gather operand 0")
    register("failing", failing(error))
    done = samite("fail")
    assert done.exit_code == 1
    assert done.stderr == "LayoutError: mm: dim k is split   (train.py:41)\n  help: gather operand 0\n"
    assert samite("--debug", "fail").exception is error


def test_a_workers_traceback_is_part_of_its_error(register: Any) -> None:
    register("failing", failing(WorkerError("rank 1 raised", rank=1, remote_traceback="Traceback: [bold]x[/bold]")))
    assert "Traceback: [bold]x[/bold]" in samite("fail").stderr


def test_other_exceptions_are_bugs_and_stay_as_they_are(register: Any) -> None:
    register("failing", failing(ZeroDivisionError("1/0")))
    assert isinstance(samite("fail").exception, ZeroDivisionError)


# what plugins add


class Greeting:
    @hookimpl
    def samite_add_commands(self) -> Mapping[str, Callable[..., None]]:
        def greet(name: str, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
            """Say hello."""
            print(f"hello {name}".upper() if loud else f"hello {name}")

        return {"greet": greet}


def test_a_plugin_adds_a_command(register: Any) -> None:
    register("greeting", Greeting())
    assert re.search(r"greet +Say hello\.", samite("--help").stdout)
    assert samite("greet", "world", "--loud").stdout == "HELLO WORLD\n"
    assert samite("greet").exit_code == 2


def test_two_commands_of_one_name_are_refused(register: Any) -> None:
    register("greeting", Greeting())
    register("greeting_again", Greeting())
    done = samite("greet", "world")
    assert done.exit_code == 1
    assert 'command "greet" is provided twice' in done.stderr


def test_the_commands_of_samite_cannot_be_replaced(register: Any) -> None:
    class Impostor:
        @hookimpl
        def samite_add_commands(self) -> Mapping[str, Callable[..., None]]:
            return {"doctor": lambda: None}

    register("impostor", Impostor())
    done = samite("--help")
    assert done.exit_code == 1
    assert done.stderr.startswith('PluginError: command "doctor" is provided twice')
    assert samite("doctor").stdout.rstrip().endswith("Ready.")


def test_a_configured_plugin_that_is_missing_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMITE_BACKENDS", "warp_drive")
    done = samite("--help")
    assert done.exit_code == 0
    assert 'warning: nothing from "warp_drive": "warp_drive" is not installed' in done.stderr


def test_a_broken_configuration_leaves_the_help() -> None:
    Path("samite.toml").write_text("nonsense = 1\n")
    assert samite("--help").exit_code == 0


# run


def test_run_needs_a_script() -> None:
    done = samite("run", "-n", "2", "nowhere.py")
    assert done.exit_code == 1
    assert done.stderr == 'ConfigError: no file "nowhere.py"   (argument)\n'
    assert samite("run", "-n", "0", __file__).exit_code == 2
    assert "is a folder" in samite("run", ".").stderr


SPMD = """
import os, sys
import samite, torch

def total(x):
    return x.sum()

mesh = samite.mesh("cpu", dp=2)
sum_over_ranks = samite.compile(total, mesh=mesh, placements={"x": {"dp": samite.Shard(0)}})
result = sum_over_ranks(torch.arange(8.0)).item()
with open(f"rank{os.environ['RANK']}.txt", "w") as file:
    print(mesh.engine, result, sys.argv[1:], file=file)
sys.exit(int(sys.argv[1]) if os.environ["RANK"] == "1" else 0)
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("code", [0, 7])
def test_run_starts_a_script_as_ranks(tmp_path: Path, code: int) -> None:
    (tmp_path / "total.py").write_text(SPMD)
    samite = Path(sys.executable).with_name("samite")
    command = [str(samite), "run", "-n", "2", "total.py", str(code), "--json", "-n", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, done.stderr
    if code == 0:  # the rank that fails ends the other one, wherever that is
        said = [(tmp_path / f"rank{rank}.txt").read_text() for rank in range(2)]
        assert said == ["torchrun 28.0 ['0', '--json', '-n', '5']\n"] * 2


class Broken:
    @hookimpl
    def samite_add_drivers(self) -> Mapping[str, Callable[[], Any]]:
        def make() -> Any:
            from samite.errors import BackendUnusable

            raise BackendUnusable("no driver for this kernel")

        return {"broken": make}


class _Driver:
    """As much of a driver as a doctor asks for."""

    collectives = "none"
    algorithms = ()

    def devices(self) -> list[Any]:
        return []

    def absent(self, *_: object) -> None:
        raise NotImplementedError

    supports = compile = load = allocator = communicator = absent


class Empty:
    @hookimpl
    def samite_add_drivers(self) -> Mapping[str, Callable[[], Any]]:
        return {"empty": _Driver}


class Blind:
    @hookimpl
    def samite_add_drivers(self) -> Mapping[str, Callable[[], Any]]:
        class Driver(_Driver):
            def devices(self) -> list[Any]:
                raise RuntimeError("the bus is on fire")

        return {"blind": Driver}
