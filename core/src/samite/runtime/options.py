"""Options that a mesh gives to its engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from samite.errors import ConfigError, nearest

__all__ = ["check_options"]


def check_options(engine: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raises ConfigError, with the nearest names, for an option that an engine has not."""
    for key in given:
        if key not in known:
            raise ConfigError(f'the {engine} engine has no option "{key}"', help=nearest(key, known))
