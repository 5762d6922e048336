"""Loading one entry point, by stevedore. Not imported before a plugin is asked for.

stevedore is given the entry points that were listed here. Its own list does for neither of the two things that a list
must: it is read once a process, from a file on disk that is named by the times of others (what is installed while a
process runs, or twice within a tick of the file system, is not seen), and it names no distribution, so that duplicates
could not be told apart.
"""

from __future__ import annotations

import importlib.metadata

from stevedore.driver import DriverManager

__all__ = ["load_entry"]


class _Listed(DriverManager):  # pyright: ignore[reportMissingTypeArgument]  # generic in newer versions only
    def __init__(self, entry: importlib.metadata.EntryPoint) -> None:
        self._entry = entry
        super().__init__(entry.group, entry.name, on_load_failure_callback=_fail)

    def list_entry_points(self) -> list[importlib.metadata.EntryPoint]:
        return [self._entry]


def load_entry(entry: importlib.metadata.EntryPoint) -> object:
    """What an entry point names. Raises what its import raises, and logs nothing."""
    return _Listed(entry).driver


def _fail(manager: object, entry: importlib.metadata.EntryPoint, error: BaseException) -> None:
    raise error
