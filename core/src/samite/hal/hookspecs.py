"""The cold hooks of a plugin: each is called once, when the plugin is loaded. Hot calls go straight to the objects.

All return factories or plain descriptions, so that registering a plugin imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from samite.hal.driver import Driver
    from samite.hal.engine import Engine

hookspec = pluggy.HookspecMarker("samite")
hookimpl = pluggy.HookimplMarker("samite")


@hookspec
def samite_add_drivers() -> Mapping[str, Callable[[], Driver]]:  # pyright: ignore[reportReturnType]
    """Backends by short name. A factory is called at first use; it raises BackendUnusable where it cannot work."""


@hookspec
def samite_add_engines() -> Mapping[str, Callable[[], Engine]]:  # pyright: ignore[reportReturnType]
    """Engines by short name. A factory is called when the first mesh that names the engine starts."""


@hookspec
def samite_add_passes() -> Mapping[str, Sequence[Any]]:  # pyright: ignore[reportReturnType]
    """Passes (objects with `name` and `run(module)`), keyed by the pass that they follow; read at every compilation."""


@hookspec
def samite_add_rules() -> Sequence[Any]:  # pyright: ignore[reportReturnType]
    """Sharding rules, as `samite.rules.rule` makes them, for ops that have none; read before the first placement."""


@hookspec
def samite_add_commands() -> Mapping[str, Callable[..., None]]:  # pyright: ignore[reportReturnType]
    """Commands of `samite`, by name: functions whose annotated parameters typer reads; asked for at its start."""


@hookspec
def samite_add_report_sections() -> Mapping[str, Callable[[Any], Any]]:  # pyright: ignore[reportReturnType]
    """Sections of `samite explain`, by title: each takes the compiled program's report, gives what rich can print."""
