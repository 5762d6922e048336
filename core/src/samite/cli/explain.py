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
from samite.report import console, describe, predicted_timeline, report_as_text, timeline_as_text

__all__ = ["explain"]


def explain(
    target: str,
    arguments: Sequence[str],
    *,
    ir: str,
    as_json: bool,
    first: bool,
    timeline: bool = False,
    trace: Path | None = None,
) -> None:
    """Prints the report of `target` ("FILE:FUNCTION"), or the module after the pass `ir`, or the `timeline`; as JSON
    the report and what else is asked for. The timeline also goes to the file `trace`, for programs that draw it.

    Raises ConfigError for a target that is not there or a file that cannot be written, PassMissing for an unknown pass,
    and what compiling raises.
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
    predicted = predicted_timeline(built) if timeline or trace else None
    if predicted is not None and trace is not None:
        _write(trace, json.dumps(predicted.trace()))
    if as_json:
        more = {"ir": {ir: text}} if ir else {}
        more |= {"timeline": predicted.to_dict()} if predicted is not None else {}
        print(json.dumps(describe(built).to_dict() | more, indent=2))
    elif ir:
        print(text)
    elif timeline and predicted is not None:
        console().print(timeline_as_text(predicted))
    else:
        _print_report(built)


def _print_report(built: Built) -> None:
    report, out = describe(built), console()
    out.print(report_as_text(report))
    mesh = built.program.mesh
    for title, section in report_sections((*mesh.backends, mesh.engine)).items():
        out.print("", Text(title, style="bold"), section(report), sep="\n")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be written: {error}", where=str(file)) from error


def _parse(target: str) -> tuple[Path, str]:
    file, colon, function = target.rpartition(":")
    if not colon or not function.isidentifier():
        what = f'"{target}" does not name a function of a file'
        raise ConfigError(what, where="argument", help='write "train.py:train_step"')
    script = Path(file)
    require_file(script)
    return script, function
