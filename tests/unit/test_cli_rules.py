"""`samite rules`: the list, one rule, and the checker."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from samite.cli.app import app
from samite.passes import fragments
from samite.passes.placement import plans
from samite.rules import Rule, language, rules
from samite.rules.binding import bind
from samite.testing.workers import Worker


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["rules", *arguments], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Rule]]:
    """The registry of rules, to change."""
    changed = dict(rules())
    monkeypatch.setattr(language, "_rules", changed)
    yield changed
    forget()


def forget() -> None:
    """What was derived from rules is kept by op."""
    bind.cache_clear()
    fragments.local_op.cache_clear()
    plans._plans.clear()


def test_list_has_a_line_a_rule() -> None:
    code, text = run("list", "--op", "*mm")
    assert code == 0
    lines = {line.split()[0]: line for line in text.splitlines()[2:]}
    assert {"aten.mm", "aten.bmm", "aten.addmm"} <= set(lines)
    assert "m k, k n -> m n" in lines["aten.mm"]
    assert 'sum="k"' in lines["aten.mm"]
    assert "aten.add.Tensor" not in lines


def test_show_fits_a_screen() -> None:
    code, text = run("show", "cumsum")
    assert code == 0
    assert text.startswith("aten.cumsum\n")
    assert "scan.cumsum" in text
    assert "aten.cumsum(float64[" in text
    assert len(text.splitlines()) < 40
    assert run("show", "samite.sdpa")[0] == 0


def test_check_says_what_it_tried() -> None:
    code, text = run("check", "--op", "neg")
    assert code == 0
    assert "1 rules, " in text
    assert text.rstrip().endswith("Right.")


def test_check_as_json() -> None:
    code, text = run("check", "--op", "relu", "--json")
    found = json.loads(text)
    assert code == 0
    assert found["ops"]["aten.relu"]["trials"] > 0
    assert (found["wrong"], found["untried"]) == ([], [])


def test_full_takes_more_than_a_sample(registry: dict[str, Rule]) -> None:
    tried = [
        json.loads(run("check", "--op", "dot", "--json", *more)[1])["ops"]["aten.dot"] for more in ([], ["--full"])
    ]
    assert tried[0]["trials"] < tried[1]["trials"]
    assert tried[0]["samples"] <= tried[1]["samples"]


def test_processes_find_what_one_finds() -> None:
    one, two = (json.loads(run("check", "--op", "dot", "--json", *more)[1]) for more in ([], ["-n", "2"]))
    assert one == two


def test_a_sample_whose_kernel_kills_the_process_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Worker.ask

    def killed(worker: Worker, question: str, seconds: float) -> str:
        return ask(worker, "aten.dot\t99" if question.startswith("aten.dot") else question, seconds)

    monkeypatch.setattr(Worker, "ask", killed)
    code, text = run("check", "--op", "do[t]", "-n", "2")
    assert code == 1
    assert "wrong: aten.dot: the process died (exit code 1)" in text


def test_a_wrong_rule_is_an_exit_code(registry: dict[str, Rule]) -> None:
    registry["aten.relu"] = dataclasses.replace(rules()["aten.relu"], linear="all")
    forget()
    code, text = run("check", "--op", "relu", "--seed", "3")
    assert code == 1
    assert "wrong: aten.relu: " in text
    assert text.rstrip().endswith("Wrong.")


def test_rules_without_a_sample_are_named(registry: dict[str, Rule]) -> None:
    registry["my_lib.op"] = Rule("my_lib.op", "*a -> *a")
    code, text = run("check", "--op", "my_lib.*")
    assert code == 0
    assert "without a sample: my_lib.op" in text


@pytest.mark.parametrize("command", [("show", "softmx"), ("check", "--op", "softmx"), ("list", "--op", "softmx")])
def test_what_names_no_rule(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["rules", *command], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "names no rule" in done.stderr
    assert "_softmax" in done.stderr


@pytest.mark.parametrize("op", ["addmm", "aten.addmm", "aten.addmm.default", "torch.ops.aten.addmm.default"])
def test_an_op_by_any_of_its_names(op: str) -> None:
    code, text = run("show", op)
    assert code == 0
    assert text.startswith("aten.addmm\n")
