"""`samite explain`: the report of one function of a script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from samite.api import Compiled
from samite.api.program import Built
from samite.cli.extensions import report_sections
from samite.cli.interception import at_first_call
from samite.cli.messages import require_file, show_script_error
from samite.cli.rehearsal import lower
from samite.errors import ConfigError, SamiteError
from samite.report import console, describe, report_as_text

__all__ = ["explain"]


def explain(target: str, arguments: Sequence[str], *, ir: str, as_json: bool, first: bool) -> None:
    """Prints the report of `target` ("FILE:FUNCTION"), or the module after the pass `ir`, or both as JSON.

    Raises ConfigError for a target that is not there, PassMissing for an unknown pass, and what compiling raises.
    """
    script, function = _parse(target)
    keep = (ir,) if ir else ()

    def action(compiled: Compiled, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Built:
        return lower(compiled, args, kwargs, first=first, keep_text=keep)

    try:
        built = at_first_call(script, function, arguments, action)
    except SamiteError:
        raise
    except Exception as error:  # the script's own: it is shown as Python would
        show_script_error(error, script)
        raise typer.Exit(1) from None
    text = next((record.text for record in built.records if record.name == ir), "")
    if as_json:
        print(json.dumps(describe(built).to_dict() | ({"ir": {ir: text}} if ir else {}), indent=2))
    elif ir:
        print(text)
    else:
        _print_report(built)


def _print_report(built: Built) -> None:
    report, out = describe(built), console()
    out.print(report_as_text(report))
    mesh = built.program.mesh
    for title, section in report_sections((*mesh.backends, mesh.engine)).items():
        out.print("", Text(title, style="bold"), section(report), sep="\n")


def _parse(target: str) -> tuple[Path, str]:
    file, colon, function = target.rpartition(":")
    if not colon or not function.isidentifier():
        what = f'"{target}" does not name a function of a file'
        raise ConfigError(what, where="argument", help='write "train.py:train_step"')
    script = Path(file)
    require_file(script)
    return script, function
