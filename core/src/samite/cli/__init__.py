"""The command line: `samite doctor`, `samite explain`, `samite run`, and the commands that plugins add."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The console script."""
    from samite.cli.app import app

    app()
