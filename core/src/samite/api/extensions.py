"""What plugins add to the compiler: sharding rules, once, and passes, at every compilation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samite.errors import PassMissing, nearest
from samite.passes.base import Pass
from samite.plugins import hooks

__all__ = ["load_rules", "with_passes"]

_asked: set[str] = set()


def load_rules(backends: Sequence[str]) -> None:
    """Register the rules of these backends, and of every other plugin that is loaded; each is asked once."""
    for hook in hooks(backends).samite_add_rules.get_hookimpls():
        if hook.plugin_name not in _asked:
            _asked.add(hook.plugin_name)
            hook.function()


def with_passes(passes: Sequence[Pass]) -> list[Pass]:
    """`passes` with those of plugins behind the pass that each names. Raises PassMissing for a name that is none."""
    added: dict[str, list[Any]] = {}
    for mapping in hooks().samite_add_passes():
        for after, more in mapping.items():
            added.setdefault(after, []).extend(more)
    unknown = added.keys() - {p.name for p in passes}
    if unknown:
        name = min(unknown)
        raise PassMissing(f'a plugin adds passes after "{name}"', help=nearest(name, [p.name for p in passes]))
    return [step for p in passes for step in (p, *added.get(p.name, ()))]
