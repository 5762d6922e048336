"""`samite rules`: the sharding rules as they are, and the checker that tries them by brute force."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from fnmatch import fnmatchcase
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from samite.api.extensions import load_rules
from samite.config import Settings
from samite.errors import RuleError, nearest
from samite.report import console, plain_table
from samite.rules import Rule, rules
from samite.testing.rulecheck import Report, Sample

__all__ = ["check", "list_rules", "show"]

SAMPLES = 2
"""Samples of an op that a check takes, unless all are asked for: the first, and one drawn."""
SAMPLED = {"limit": 4, "gradients": 1, "missing": False}
"""How `check_rules` tries each of them then."""
FULL = {"limit": None, "gradients": 8}


def check(pattern: str, *, full: bool, as_json: bool, seed: int, processes: int) -> None:
    """Tries the rules that `pattern` names and prints what is wrong. Exit code 1 if anything is."""
    from samite.testing.rulecheck.workers import check_all

    named = _named(pattern)
    samples = _samples(full, seed)
    effort: dict[str, Any] = {**(FULL if full else SAMPLED), "seed": seed}
    untried = [name for name in named if not samples.get(name)]
    todo = [sample for name in named for sample in samples.get(name, [])]
    report = Report()
    with Progress(*Progress.get_default_columns(), console=console(stderr=True)) as progress:
        for found in progress.track(check_all(todo, processes, effort), len(todo), description="checking rules"):
            report.merge(found)
    if as_json:
        print(json.dumps({**asdict(report), "untried": untried}, indent=2))
    else:
        console().print(_as_text(report, untried, full))
    raise typer.Exit(0 if report.ok else 1)


def list_rules(pattern: str) -> None:
    """Prints the rules that `pattern` names, one a line."""
    table = plain_table("Rules", "op", "rule", "options")
    for name in _named(pattern):
        table.add_row(name, Text(str(rules()[name])), Text(_options(rules()[name])))
    console().print(table)


def show(op: str) -> None:
    """Prints one rule, and what it is tried on."""
    [name] = _named(_full_name(op))
    rule = rules()[name]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("rule", Text(str(rule)))
    for option, value in _set_options(rule):
        table.add_row(option, Text(value))
    for number, sample in enumerate(_samples(True, 0).get(name, [])):
        table.add_row("" if number else "samples", Text(str(sample)))
    console().print(Text(name, style="bold"), table)


def _full_name(op: str) -> str:
    """The name of an op's rule: "mm", "aten.mm" and "torch.ops.aten.mm.default" are one op."""
    short = op.removeprefix("torch.ops.").removesuffix(".default")
    names = [name for name in (op, short, f"aten.{short}") if name in rules()]
    return names[0] if names else short


def _named(pattern: str) -> list[str]:
    """Raises RuleError for a pattern that names no rule."""
    load_rules(Settings().backends)
    found = [n for n in sorted(rules()) if fnmatchcase(n, pattern) or fnmatchcase(n.removeprefix("aten."), pattern)]
    if not found:
        raise RuleError(f'"{pattern}" names no rule', help=nearest(pattern, rules()))
    return found


def _samples(full: bool, seed: int) -> dict[str, Sequence[Sample]]:
    from samite.testing.rulecheck.dtypes import samples_of_all_dtypes
    from samite.testing.rulecheck.samples import all_samples

    if full:
        return dict(samples_of_all_dtypes())
    return {name: [*found[:1], *_drawn(found[1:], f"{seed} {name}")] for name, found in all_samples().items()}


def _drawn(samples: Sequence[Sample], seed: str) -> list[Sample]:
    return random.Random(seed).sample(samples, min(SAMPLES - 1, len(samples)))


def _set_options(rule: Rule) -> Iterator[tuple[str, str]]:
    for option in fields(rule):
        value = getattr(rule, option.name)
        if value and option.name not in ("op", "text"):
            yield option.name, _spelled(value)


def _options(rule: Rule) -> str:
    return "  ".join(f"{name}={value}" for name, value in _set_options(rule))


def _spelled(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if callable(value):
        return f"{value.__module__.rpartition('.')[2]}.{value.__name__}"
    return ", ".join(f"{key}: {_spelled(v)}" for key, v in value.items()) if isinstance(value, dict) else str(value)


def _as_text(report: Report, untried: Sequence[str], full: bool) -> RenderableType:
    checked = report.ops.values()
    how = "all samples, all plans" if full else "some samples at some placements; --full takes all"
    lines: list[RenderableType] = [
        f"{len(report.ops)} rules, {sum(c.planned for c in checked)} placements planned, "
        f"{sum(c.trials for c in checked)} plans run, {sum(c.gradients for c in checked)} gradients ({how})"
    ]
    lines += [Text(f"wrong: {finding}") for finding in report.wrong]
    lines += [Text(f"missing: {finding.op}: {finding.placements}") for finding in report.missing]
    if untried:
        lines.append(Text(f"without a sample: {', '.join(untried)}"))
    verdict = ("Wrong.", "bold red") if report.wrong else ("Right.", "bold green")
    return Group(*lines, Text(*verdict))
