"""What plugins add to the command line. A plugin that cannot be loaded adds nothing, and a warning says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Any

from samite import plugins
from samite.cli.messages import warn
from samite.config import Settings
from samite.errors import ConfigError, PluginError

__all__ = ["plugin_commands", "report_sections"]

Command = Callable[..., None]
Section = Callable[[Any], Any]


def plugin_commands(own: Collection[str]) -> Mapping[str, Command]:
    """Commands of the configured backends and engine, by name. PluginError if a name is taken, by `own` or a plugin."""
    try:
        settings = Settings()
    except ConfigError:
        return {}  # `samite doctor` must run to show what is wrong, and every command that needs a setting says so
    return _joined("command", _asked((*settings.backends, settings.engine)).samite_add_commands(), own)


def report_sections(names: Iterable[str]) -> Mapping[str, Section]:
    """Sections of reports from the plugins `names`, by title. PluginError if two have one title."""
    return _joined("report section", _asked(tuple(names)).samite_add_report_sections(), ())


@cache
def _asked(names: tuple[str, ...]) -> Any:
    """The hooks of what can be loaded of `names`."""
    for name in names:
        try:
            if name != "auto":
                plugins.hooks([name])
        except PluginError as error:
            warn(f'nothing from "{name}": {error.what}')
    return plugins.hooks()


def _joined(what: str, parts: Iterable[Mapping[str, Any]], own: Collection[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        for name, added in part.items():
            if name in found or name in own:
                raise PluginError(f'{what} "{name}" is provided twice', where=getattr(added, "__module__", ""))
            found[name] = added
    return found
