"""`samite explain`: which call of a script it explains, what it prints, and what it says when it cannot."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from samite import plugins
from samite.cli import extensions
from samite.cli.app import app
from samite.hal import hookimpl
from samite.ir.module import Module
from samite.passes.pipeline import default_passes

SCRIPT = """
import sys
import samite, torch
from samite import Shard

mesh = samite.mesh("cpu", dp=2, tp=512, engine="local")    # more ranks than any engine here has

@samite.compile(mesh=mesh, placements={"x": {"dp": Shard(0)}})
def train_step(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

def forward(x):
    return (x + 1).sum()

total = samite.compile(forward, mesh=samite.mesh("cpu", dp=4, engine="local"), placements={"x": {"dp": Shard(0)}})

def idle(): pass

print("the script runs with", sys.argv[1:])
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(1 << 62):
    try:
        train_step(model, optimizer, torch.ones(8, 6))
    except Exception:
        pass    # an explanation must end this loop all the same
    if "total" in sys.argv:
        total(torch.ones(8))
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments])


def test_the_program_of_all_calls_but_the_first_is_shown(script: Path) -> None:
    done = explain("train.py:train_step", "--json", "--", "one", "--two")
    assert done.exit_code == 0, done.output
    assert "the script runs with ['one', '--two']" in done.stderr
    report = json.loads(done.stdout)  # nothing but the report is there
    assert (report["function"], report["mesh"], report["engine"]) == ("train_step", "cpu dp=2 tp=512", "local")
    rows = {row["name"]: row for row in report["partition"]}
    assert {"model.weight", "optimizer.weight.exp_avg", "x", "output"} <= set(rows)
    assert rows["optimizer.weight.exp_avg"]["kind"] == "state"  # it is there already when the call begins
    assert rows["x"]["local_shape"] == [4, 6]
    assert [row["line"] for row in report["collectives"]]
    assert all(re.fullmatch(r"train\.py:\d+", row["line"]) for row in report["collectives"])


def test_first_shows_the_call_that_makes_the_optimizers_state() -> None:
    report = json.loads(explain("train.py:train_step", "--json", "--first").stdout)
    rows = {row["name"]: row for row in report["partition"]}
    assert rows["optimizer.weight.exp_avg"]["kind"] == "result"


def test_a_function_is_found_by_the_name_of_its_variable(script: Path) -> None:
    """`total` is compiled from `forward`; the calls of another function before it are executed."""
    source = SCRIPT.replace("tp=512, ", "").replace('engine="local"', 'engine="lockstep"')
    script.write_text(source)
    report = json.loads(explain("train.py:total", "--json", "--", "total").stdout)
    assert (report["function"], report["mesh"]) == ("forward", "cpu dp=4")
    assert report["collectives"][0]["results"] == ["output"]


def test_the_report_is_one_screen_with_the_line_that_communicates() -> None:
    done = explain("train.py:train_step")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("train_step on cpu dp=2 tp=512 (1024 ranks, engine local)")
    assert len(lines) < 40
    loss = next(i for i, line in enumerate(SCRIPT.splitlines(), start=1) if "square" in line)
    assert re.search(rf"all_reduce dp .*train\.py:{loss}\b", done.stdout)
    assert lines[-1].startswith("Each of 1024 ranks holds ")


@pytest.mark.parametrize("name", [step.name for step in default_passes({}, {}, 1)])
def test_the_module_after_any_pass_can_be_parsed(name: str) -> None:
    done = explain("train.py:train_step", "--ir", name)
    assert done.exit_code == 0, done.output
    module = Module.parse(done.stdout)
    assert module.graph.arguments[0].name == "model.weight"
    partitioned = name in ("partition", "fuse_collectives", "bucket_collectives", "verify")
    assert ("dist.all_reduce" in done.stdout) == partitioned


def test_the_module_is_part_of_the_json() -> None:
    report = json.loads(explain("train.py:train_step", "--json", "--ir", "place").stdout)
    assert list(report["ir"]) == ["place"]
    assert Module.parse(report["ir"]["place"]).graph.nodes


def test_the_timeline_is_drawn_and_named() -> None:
    done = explain("train.py:train_step", "--timeline")
    assert done.exit_code == 0, done.output
    title, computing, communicating, *_ = done.stdout.splitlines()
    assert re.match(r"Timeline of one call, predicted: \S+ .?s, \S+ .?s communicating, of which 0% is hidden", title)
    assert re.match(r"rank 0 compute +[·░▒▓█]{100}", computing)
    assert re.match(r"rank 0 communication +[·░▒▓█]{100}", communicating)
    loss = next(i for i, line in enumerate(SCRIPT.splitlines(), start=1) if "square" in line)
    assert re.search(rf"all_reduce dp +1 .* 100% +train\.py:{loss}\b", done.stdout)


def test_the_timeline_as_data(tmp_path: Path) -> None:
    done = explain("train.py:train_step", "--json", "--timeline", "--trace", "trace.json")
    assert done.exit_code == 0, done.output
    computing, communicating = json.loads(done.stdout)["timeline"]["lanes"]
    assert {span["kind"] for span in computing["spans"]} == {"compute"}
    assert {span["kind"] for span in communicating["spans"]} == {"communication"}
    drawn = [event for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(drawn) == len(computing["spans"]) + len(communicating["spans"])
    assert "timeline" not in json.loads(explain("train.py:train_step", "--json").stdout)


def test_a_trace_that_cannot_be_written() -> None:
    done = explain("train.py:train_step", "--trace", "nowhere/trace.json")
    assert done.exit_code == 1
    assert "cannot be written: [Errno 2]" in done.stderr


def test_a_plugin_adds_a_section() -> None:
    class Sections:
        @hookimpl
        def samite_add_report_sections(self) -> dict[str, Any]:
            return {"Weather": lambda report: f"sunny over {report.axes['dp']} ranks"}

    plugins.register("weather", Sections())
    extensions._asked.cache_clear()
    try:
        assert re.search(r"Weather\s+sunny over 2 ranks\s*$", explain("train.py:train_step").stdout)
    finally:
        plugins.unregister("weather")


@pytest.mark.parametrize(
    "target, message, help",
    [
        ("train.py", '"train.py" does not name a function of a file', "train.py:train_step"),
        ("train.py:", '"train.py:" does not name a function of a file', "train.py:train_step"),
        ("train.py:a b", "does not name a function of a file", "train.py:train_step"),
        ("nowhere.py:train_step", 'no file "nowhere.py"', ""),
        (".:train_step", '"." is a folder', ""),
        ("train.py:train_stp", 'there is no "train_stp"   (train.py)', 'did you mean "train_step"?'),
    ],
)
def test_a_target_that_is_not_there(target: str, message: str, help: str) -> None:
    done = explain(target)
    assert done.exit_code == 1
    assert done.stderr.startswith("ConfigError: ")
    assert message in done.stderr
    assert help in done.stderr
    assert "the script runs" not in done.stderr


def test_an_unknown_pass(script: Path) -> None:
    done = explain("train.py:train_step", "--ir", "partiton")
    assert done.exit_code == 1
    assert 'PassMissing: no pass is called "partiton"\n  help: did you mean "partition"?' in done.stderr


def test_a_function_that_is_never_called(script: Path) -> None:
    script.write_text("import sys\ndef step(): pass\nkept = step\nprint('done')\nsys.exit(3)\n")
    done = explain("train.py:step")
    assert done.exit_code == 1
    assert 'ConfigError: the script ended without a call of "step"   (train.py)' in done.stderr
    assert "compiled and called: none" in done.stderr


@pytest.mark.parametrize("text", ["kept = step", "step()"])
def test_a_function_that_is_not_compiled(text: str, script: Path) -> None:
    """It is said before the script runs, if it is certain."""
    script.write_text(f"def step(): pass\nprint('the script ran')\n{text}\n")
    done = explain("train.py:step")
    assert ("the script ran" in done.stderr) == (text != "step()")
    assert done.exit_code == 1
    assert 'ConfigError: "step" is not compiled   (train.py)\n  help: decorate it' in done.stderr


def test_a_file_that_is_not_python(script: Path) -> None:
    script.write_text("def step(:\n")
    done = explain("train.py:step")
    assert done.exit_code == 1
    assert re.search(r"ConfigError: not Python: .*\(train\.py:1\)", done.stderr)


def test_an_error_of_the_script_is_shown_as_python_would(script: Path) -> None:
    script.write_text("def step(): return [][1]\n(lambda f: f())(step)\n")
    done = explain("train.py:step")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == "IndexError: list index out of range"
    assert re.search(r'^Traceback .*\n  File ".*train\.py", line 2', done.stderr)
    assert "samite" not in done.stderr


def test_an_error_of_the_compiler_names_the_users_line(script: Path) -> None:
    """The script would catch the error and call again, for ever."""
    script.write_text(SCRIPT.replace("    loss.backward()", "    if loss.item() > 0: loss.backward()"))
    done = explain("train.py:train_step")
    assert done.exit_code == 1
    line = next(i for i, text in enumerate(SCRIPT.splitlines(), start=1) if "backward" in text)
    assert re.search(rf"^CaptureError: .*\(train\.py:{line}\)\n  help: ", done.stderr, re.M)


def test_the_console_script(script: Path) -> None:
    samite = Path(sys.executable).with_name("samite")
    for program in ([str(samite)], [sys.executable, "-m", "samite"]):
        command = [*program, "explain", "train.py:train_step"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("train_step on cpu dp=2 tp=512")
