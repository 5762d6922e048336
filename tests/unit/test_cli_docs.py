"""The pages for users say what is so: their code runs, and their tables have every setting, command and option."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ByteSize, TypeAdapter
from typer.testing import CliRunner

from samite.cli.app import app
from samite.config import Settings
from samite.rules import Rule
from samite.rules.notation import parse

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), ROOT / "core/README.md", ROOT / "plugins/cpu/README.md"])


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code(name: str) -> str:
    """The Python of a page, at the lines where the page has it."""
    lines, inside = [], False
    for line in page(name).splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines)


def table(name: str, heading: str) -> dict[str, list[str]]:
    """The rows of the first table after a heading, by their first cell without backquotes."""
    after = page(name).split(f"{heading}\n", 1)[1]
    rows = [line for line in after.split("\n#", 1)[0].splitlines() if line.startswith("| ")][2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    return {first.strip("`"): rest for first, *rest in cells}


@pytest.mark.parametrize("name", ["README.md", "core/README.md", "docs/guide.md", "docs/rules.md", "docs/tensor.md"])
def test_the_code_of_a_page_runs(name: str, tmp_path: Path) -> None:
    script = tmp_path / Path(name).with_suffix(".py").name
    script.write_text(code(name), encoding="utf-8")
    environment = {**os.environ, "SAMITE_ENGINE": "lockstep"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    if name == "docs/guide.md":
        line = next(i for i, text in enumerate(code(name).splitlines(), start=1) if "x.sum() < 10" in text)
        assert f"(guide.py:{line})" in done.stdout
        assert f"which cannot be captured   (guide.py:{line})" in page(name), "the page quotes another line"


def test_every_setting_is_documented_with_its_default() -> None:
    rows = table("docs/configuration.md", "## Settings")
    assert list(rows) == list(Settings.model_fields)
    for name, (default, *_) in rows.items():
        field = Settings.model_fields[name]
        value = field.get_default()
        said: object = default.strip("`")
        if name == "backends":
            said = tuple(str(said).split(","))
        elif isinstance(value, ByteSize):
            said = TypeAdapter(ByteSize).validate_python(said)
        else:
            said = TypeAdapter(type(value)).validate_python(said)
        assert said == value, name


def test_every_option_of_a_rule_is_documented() -> None:
    options = {name.strip("` ") for first in table("docs/rules.md", "## The options") for name in first.split(",")}
    assert options == {field.name for field in dataclasses.fields(Rule)} - {"op", "text"}


def test_the_notation_that_is_documented_is_the_one_that_is_parsed() -> None:
    for written in table("docs/rules.md", "## The notation"):
        assert parse(f"{written} -> {written if written not in ('?(n)', '[x]') else 'm'}"), written


def test_every_command_is_in_a_readme() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    for command in re.findall(r"^│ ([a-z]+) ", shown, re.M):
        assert f"samite {command}" in page("README.md"), command
        assert f"samite {command}" in page("core/README.md"), command


def test_links_lead_somewhere() -> None:
    links = [
        (path, link) for path in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    ]
    assert links
    for path, link in links:
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), f"{path.name}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, link
