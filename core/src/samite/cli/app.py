"""The commands and their options. What a command does is imported when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from samite.errors import SamiteError

__all__ = ["app"]

_ALL_AFTER = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""What follows the script is the script's own."""


class _Commands(TyperGroup):
    """The commands of this file, and those of the configured plugins, which are asked only when one is needed.

    Contexts are Any: whether they are Click's or typer's own depends on typer's version.
    """

    _debug = False

    def list_commands(self, ctx: Any) -> list[str]:
        from samite.cli.extensions import plugin_commands

        return [*super().list_commands(ctx), *plugin_commands(self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        from samite.cli.extensions import plugin_commands

        added = plugin_commands(self.commands).get(cmd_name)
        if added is None:
            return None
        single = typer.Typer(add_completion=False)
        single.command(cmd_name)(added)
        command = typer.main.get_command(single)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        self._debug = bool(ctx.params["debug"])
        return super().invoke(ctx)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """An error of Samite is a message for the user; its traceback is shown to those who ask."""
        try:
            return super().main(*args, **kwargs)
        except SamiteError as error:
            if self._debug:
                raise
            from samite.cli.messages import show_error

            show_error(error)
            sys.exit(1)


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")


@app.callback()
def _options(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """One ordinary PyTorch program over a mesh of unlike devices."""


@app.command()
def doctor() -> None:
    """What is installed and usable here: backends and engines, their devices, the settings and where each is from.

    The exit code is 0 if everything configured is usable, else 1.
    """
    from samite.cli.doctor import diagnose, diagnosis_as_text
    from samite.config import Settings
    from samite.report import console

    diagnosis = diagnose(Settings())
    console().print(diagnosis_as_text(diagnosis))
    raise typer.Exit(1 if diagnosis.problems else 0)


@app.command()
def explain(
    target: Annotated[str, typer.Argument(metavar="FILE:FUNCTION", help="A script, and a compiled function in it.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="The script's own.")] = None,
    ir: Annotated[str, typer.Option(metavar="PASS", help="Print the module as this pass leaves it.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    first: Annotated[bool, typer.Option("--first", help="The program of the first call only.")] = False,
    timeline: Annotated[bool, typer.Option("--timeline", help="Draw when what is predicted to happen.")] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write that for chrome://tracing or Perfetto.")
    ] = None,
) -> None:
    """How a compiled function is laid out, and what it communicates.

    The script runs up to the first call of FUNCTION, which is compiled for its real arguments and not executed; its
    output goes to stderr. An optimizer has no state before its first step, which gives that step a program of its own:
    the program shown is the one of the steps after it.
    """
    from samite.cli.explain import explain

    explain(target, arguments or [], ir=ir, as_json=as_json, first=first, timeline=timeline, trace=trace)


@app.command(context_settings=_ALL_AFTER)
def run(
    script: Annotated[Path, typer.Argument(help="A Python script that makes meshes of as many ranks.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="The script's own.")] = None,
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="How many processes.")] = 1,
) -> None:
    """Run a script in several processes, each a rank of its meshes, as torchrun does.

    The exit code is that of the first process that fails, else 0.
    """
    from samite.cli.messages import require_file

    require_file(script)
    from samite.runtime.launch import run_script

    raise typer.Exit(run_script(ranks, str(script), arguments or []))


_rules = typer.Typer(no_args_is_help=True)
app.add_typer(_rules, name="rules", help="The sharding rules: what they are, and whether they are right.")
_Pattern = Annotated[str, typer.Option("--op", metavar="PATTERN", help='Only these, as "mm" or "my_lib.*".')]


@_rules.command("check")
def check_rules(
    op: _Pattern = "*",
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="All samples: all plans of their rules on each mesh, and up to 256 placements, drawn by the seed.",
        ),
    ] = False,
    processes: Annotated[int, typer.Option("-n", "--processes", min=1, help="Workers that share the samples.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was tried and found as JSON.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="What to draw of the samples and placements.")] = 0,
) -> None:
    """Try rules by brute force: shards of all kinds, partial sums, gradients, each against one device.

    The exit code is 0 if all are right, else 1.
    """
    from samite.cli.rules import check

    check(op, full=full, as_json=as_json, seed=seed, processes=processes)


@_rules.command("list")
def list_rules(op: _Pattern = "*") -> None:
    """The rules, one a line."""
    from samite.cli.rules import list_rules

    list_rules(op)


@_rules.command("show")
def show_rule(op: Annotated[str, typer.Argument(metavar="OP", help='An op, as "mm" or "my_lib.scaled_sum".')]) -> None:
    """One rule, and the calls that it is tried on."""
    from samite.cli.rules import show

    show(op)
