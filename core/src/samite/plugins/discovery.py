"""Which plugins there are, from metadata alone: nothing here imports a plugin."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Literal, cast

from samite.errors import BackendMissing, PluginError, nearest
from samite.hal import API_VERSION

__all__ = ["Candidate", "Catalogue", "Entries", "Kind", "how_to_install", "installed", "load"]

Kind = Literal["backend", "engine", "extension"]
Entries = Callable[[], Iterable[importlib.metadata.EntryPoint]]

_GROUP = re.compile(r"samite\.v(\d+)\.(backend|engine)s")


@dataclass(frozen=True)
class Candidate:
    """One announced plugin. `version` is that of the plugin API, `origin` the distribution and its version."""

    name: str
    kind: Kind
    version: int
    org: str
    origin: str
    load: Callable[[], object]

    @property
    def distribution(self) -> str:
        return self.origin.split()[0]


class Catalogue:
    """What is installed, by entry points, and what was added at run time."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        # Read at first use, and again for a name that is not there: it looks at every distribution's metadata.
        self._installed: list[Candidate] | None = None
        self._added: dict[str, Candidate] = {}

    @property
    def names(self) -> list[str]:
        return sorted({candidate.name for candidate in self._all()})

    def named(self, short: str) -> list[Candidate]:
        return [candidate for candidate in self._all() if candidate.name == short]

    def refresh(self) -> None:
        """Forget what was installed, so that what has been since is found: its metadata and its modules."""
        importlib.invalidate_caches()
        self._installed = None

    def add(self, candidate: Candidate) -> None:
        self._added[candidate.name] = candidate

    def remove(self, name: str) -> None:
        if name not in self._added:
            raise PluginError(f'"{name}" was not registered at run time', help=nearest(name, sorted(self._added)))
        del self._added[name]

    def find(self, name: str, kind: Kind | None = None) -> Candidate:
        """The one plugin that `name`, short or full, may mean. The error tells why there is none."""
        short, version = _split(name)
        if version != API_VERSION:
            raise PluginError(f'"{name}" asks for plugin API v{version}; this Samite has v{API_VERSION}')
        there = self.named(short)
        if not there:
            self.refresh()
            there = self.named(short)
        if not there:
            names = self._installed_names(kind)
            close = get_close_matches(short, names, n=1)
            raise BackendMissing(
                f'"{name}" is not installed (installed: {", ".join(names) or "none"})',
                help=(f'did you mean "{close[0]}"? Otherwise: ' if close else "") + how_to_install(short),
            )
        fitting = [candidate for candidate in there if candidate.version == API_VERSION]
        if not fitting:
            raise PluginError(
                f'"{short}" ({there[0].origin}) is made for plugin API v{there[0].version}; '
                f"this Samite has v{API_VERSION}",
                help=f"pip install --upgrade {there[0].distribution}",
            )
        if len(fitting) > 1:
            one, other = fitting[:2]
            raise PluginError(
                f'"{short}" is provided twice: by {one.origin} and by {other.origin}',
                help=f"pip uninstall {one.distribution}, or {other.distribution}",
            )
        if kind and fitting[0].kind != kind:
            raise BackendMissing(
                f'"{short}" is no {kind} (installed: {", ".join(self._installed_names(kind)) or "none"})',
                help=f"{fitting[0].origin} provides it as {fitting[0].kind}",
            )
        return fitting[0]

    def _all(self) -> list[Candidate]:
        if self._installed is None:
            self._installed = [_candidate(entry) for entry in self._entries()]
        return self._installed + list(self._added.values())

    def _installed_names(self, kind: Kind | None) -> list[str]:
        return sorted({c.name for c in self._all() if kind in (None, c.kind) and c.version == API_VERSION})


def installed() -> list[importlib.metadata.EntryPoint]:
    """The entry points of every distribution, in groups of this and of other API versions."""
    found = importlib.metadata.entry_points()  # a mapping in Python 3.11, a tuple since; both know these two:
    return [entry for group in found.groups if _GROUP.fullmatch(group) for entry in found.select(group=group)]


def how_to_install(name: str) -> str:
    return f"pip install samite-{name.replace('_', '-')}"


def _candidate(entry: importlib.metadata.EntryPoint) -> Candidate:
    group = _GROUP.fullmatch(entry.group)
    assert group is not None, entry
    origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
    org = re.split(r"[-_. ]", origin)[0].lower()
    return Candidate(entry.name, cast(Kind, group[2]), int(group[1]), org, origin, partial(load, entry))


def load(entry: importlib.metadata.EntryPoint) -> object:
    """What an entry point names. Raises what its import raises."""
    from samite.plugins.loading import load_entry

    return load_entry(entry)


def _split(name: str) -> tuple[str, int]:
    """Short name and API version of `name`, which is "cpu" or "samite/cpu/v1"."""
    parts = name.split("/")
    if len(parts) == 1:
        return name, API_VERSION
    if len(parts) != 3 or not re.fullmatch(r"v\d+", parts[2]):
        raise PluginError(f'"{name}" is not the name of a plugin', help='write "cpu" or "samite/cpu/v1"')
    return parts[1], int(parts[2][1:])
