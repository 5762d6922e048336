"""What the command line says when something is wrong. It all goes to stderr."""

from __future__ import annotations

import traceback
from pathlib import Path

from rich.text import Text

from samite.errors import ConfigError, SamiteError
from samite.report import console

__all__ = ["require_file", "show_error", "show_script_error", "warn"]


def show_error(error: SamiteError) -> None:
    """The kind of error, and its text: what, where, and what to do."""
    text = Text.assemble((f"{type(error).__name__}: ", "bold red"), str(error))
    console(stderr=True).print(text, soft_wrap=True)


def warn(message: str) -> None:
    console(stderr=True).print(Text.assemble(("warning: ", "bold yellow"), message), soft_wrap=True)


def show_script_error(error: BaseException, script: Path) -> None:
    """The traceback as Python shows it, from the script's own frames on."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename != str(script):
        at = at.tb_next
    traceback.print_exception(type(error), error, at)


def require_file(path: Path) -> None:
    """Raises ConfigError if there is no such file."""
    if not path.is_file():
        raise ConfigError(f'no file "{path}"' if not path.is_dir() else f'"{path}" is a folder', where="argument")
