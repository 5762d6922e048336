"""Loading plugins and making their drivers and engines, each once and only when asked for."""

from __future__ import annotations

import importlib.metadata
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import pluggy

from samite.errors import BackendMissing, BackendUnusable, PluginError, SamiteError
from samite.hal import API_VERSION, hookspecs
from samite.plugins.discovery import Candidate, Catalogue, Entries, Kind, how_to_install, installed
from samite.plugins.discovery import load as load_entry

if TYPE_CHECKING:
    from samite.hal.driver import Driver
    from samite.hal.engine import Engine

__all__ = ["PluginInfo", "Registry"]

Factories = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class PluginInfo:
    """One plugin as `samite doctor` shows it. `origin` is its distribution and version; `reason` says why unusable."""

    name: str
    full_name: str
    kind: Kind
    state: Literal["absent", "unusable", "active"]
    origin: str = ""
    reason: str = ""


@dataclass(frozen=True)
class _Loaded:
    """A plugin in place, with what it adds under its name."""

    plugin: object
    kind: Kind
    factory: Callable[[], object] | None


class Registry:
    """The plugins of one process. `entries` gives the entry points to look through (default: all installed)."""

    def __init__(self, entries: Entries = installed) -> None:
        self._catalogue = Catalogue(entries)
        self._loaded: dict[str, _Loaded] = {}
        self._made: dict[str, object] = {}
        self._lock = threading.RLock()
        self._pluggy = pluggy.PluginManager("samite")
        self._pluggy.add_hookspecs(hookspecs)

    def driver(self, name: str) -> Driver:
        """The backend `name`. BackendMissing if not installed, BackendUnusable (with the reason) if not usable here."""
        from samite.hal.driver import Driver

        return cast(Driver, self._make(name, "backend", Driver))

    def engine(self, name: str) -> Engine:
        """The engine `name`; errors as for `driver`."""
        from samite.hal.engine import Engine

        return cast(Engine, self._make(name, "engine", Engine))

    def hooks(self, names: Iterable[str] = ()) -> pluggy.HookRelay:
        """Loads the plugins `names`; calling a hook on the result asks every plugin loaded so far."""
        for name in names:
            self._load(self._catalogue.find(name))
        return self._pluggy.hook

    def register(self, name: str, plugin: object) -> None:
        """Adds a plugin (an object, a module, or a class without arguments) under a name that is free."""
        if not re.fullmatch(r"[a-z]\w*", name):
            raise PluginError(f'"{name}" cannot name a plugin', help="use a short name such as my_device")
        with self._lock:
            if taken := self._catalogue.named(name):
                raise PluginError(f'"{name}" is provided already, by {taken[0].origin}', help="choose another name")
            loaded = self._add(name, plugin, announced=None)
            self._catalogue.add(
                Candidate(name, loaded.kind, API_VERSION, "local", "registered at run time", lambda: plugin)
            )

    def load(self, name: str, spec: str) -> None:
        """Registers what `spec` ("module:attribute") names."""
        if not re.fullmatch(r"[\w.]+(:[\w.]+)?", spec):
            raise PluginError(f'"{spec}" does not say where a plugin is', help='write "module:attribute"')
        with _blaming(name, spec):
            plugin = load_entry(importlib.metadata.EntryPoint(name, spec, "samite"))
        self.register(name, plugin)

    def unregister(self, name: str) -> None:
        """Removes what `register` or `load` added. Meshes that use it already keep it."""
        with self._lock:
            self._catalogue.remove(name)
            self._made.pop(name, None)
            self._drop(self._loaded.pop(name).plugin)

    def listing(self, wanted: Iterable[str] = ()) -> tuple[PluginInfo, ...]:
        """Every plugin there is, tried out, and the names of `wanted` (what is configured) that are absent."""
        self._catalogue.refresh()
        known = self._catalogue.names
        absent = [name for name in wanted if not self._catalogue.named(name.split("/")[-2] if "/" in name else name)]
        return (
            *(self._try(name) for name in known),
            *(PluginInfo(name, "", "backend", "absent", reason=how_to_install(name)) for name in absent),
        )

    def _try(self, name: str) -> PluginInfo:
        candidates = self._catalogue.named(name)
        first = next((each for each in candidates if each.version == API_VERSION), candidates[0])
        origin = ", ".join(candidate.origin for candidate in candidates)
        try:
            if first.kind != "extension":
                (self.driver if first.kind == "backend" else self.engine)(name)
        except SamiteError as error:
            return PluginInfo(name, self._full_name(first), first.kind, "unusable", origin, error.what)
        return PluginInfo(name, self._full_name(first), first.kind, "active", origin)

    def _make(self, name: str, kind: Kind, protocol: type) -> object:
        with self._lock:
            candidate = self._catalogue.find(name, kind)
            factory = self._load(candidate).factory
            if "/" in name and name != self._full_name(candidate):
                raise BackendMissing(f'"{name}" is not installed (installed: {self._full_name(candidate)})')
            if candidate.name not in self._made:
                assert factory is not None, "a candidate of this kind has one"
                with _blaming(candidate.name, candidate.origin):
                    made = factory()
                _check_members(candidate, made, protocol)
                self._made[candidate.name] = made
            return self._made[candidate.name]

    def _load(self, candidate: Candidate) -> _Loaded:
        with self._lock:
            if candidate.name not in self._loaded:
                with _blaming(candidate.name, candidate.origin):
                    plugin = candidate.load()
                self._add(candidate.name, plugin, candidate.kind)
            return self._loaded[candidate.name]

    def _add(self, name: str, given: object, announced: Kind | None) -> _Loaded:
        """Puts a plugin in place, or leaves everything as it was."""
        plugin = self._instance(name, given)
        try:
            if not self._pluggy.is_registered(plugin):
                self._pluggy.register(plugin, name)
                self._pluggy.check_pending()
            drivers, engines = (self._added(plugin, hook) for hook in ("samite_add_drivers", "samite_add_engines"))
            kind = _kind(name, drivers, engines, announced)
            _check_full_name(name, plugin)
        except pluggy.PluginValidationError as error:
            self._drop(plugin)
            raise PluginError(f'"{name}" has a hook that this Samite has not: {error}') from error
        except PluginError:
            self._drop(plugin)
            raise
        self._loaded[name] = _Loaded(plugin, kind, drivers.get(name) or engines.get(name))
        return self._loaded[name]

    def _instance(self, name: str, given: object) -> object:
        if not isinstance(given, type):
            return given
        for loaded in self._loaded.values():
            if type(loaded.plugin) is given:  # one class may serve several names; its rules and passes count once
                return loaded.plugin
        with _blaming(name, given.__qualname__):
            return given()

    def _added(self, plugin: object, hook: str) -> Factories:
        others = [other for other in self._pluggy.get_plugins() if other is not plugin]
        return {name: make for part in self._pluggy.subset_hook_caller(hook, others)() for name, make in part.items()}

    def _drop(self, plugin: object) -> None:
        if all(loaded.plugin is not plugin for loaded in self._loaded.values()):
            self._pluggy.unregister(plugin)

    def _full_name(self, candidate: Candidate) -> str:
        loaded = self._loaded.get(candidate.name)
        derived = f"{candidate.org}/{candidate.name}/v{candidate.version}"
        return str(getattr(loaded.plugin, "name", derived)) if loaded else derived


def _kind(name: str, drivers: Factories, engines: Factories, announced: Kind | None) -> Kind:
    if name in drivers and name in engines:
        raise PluginError(f'"{name}" is both a backend and an engine; they share one namespace')
    kind: Kind = "backend" if name in drivers else "engine" if name in engines else "extension"
    if kind == "extension" and (drivers or engines):
        raise PluginError(f'"{name}" adds nothing of this name, but {", ".join(sorted({*drivers, *engines}))}')
    if announced and kind != announced:
        raise PluginError(f'"{name}" is announced as {announced}, but is {kind}')
    return kind


def _check_full_name(name: str, plugin: object) -> None:
    full = getattr(plugin, "name", f"any/{name}/v{API_VERSION}")
    if not isinstance(full, str) or not re.fullmatch(rf"[^/]+/{name}/v{API_VERSION}", full):
        raise PluginError(
            f'"{name}" calls itself {full!r}', help=f'a full name is "organisation/{name}/v{API_VERSION}"'
        )


def _check_members(candidate: Candidate, made: object, protocol: type) -> None:
    members = [member for member in {**vars(protocol), **protocol.__annotations__} if not member.startswith("_")]
    if lacking := [member for member in members if not hasattr(made, member)]:
        what = f'"{candidate.name}" is no {protocol.__name__}: it lacks {", ".join(lacking)}'
        raise PluginError(what, where=candidate.origin)


@contextmanager
def _blaming(name: str, origin: str) -> Iterator[None]:
    """Makes what a plugin's own code raises an error that names the plugin."""
    try:
        yield
    except SamiteError:
        raise
    except ImportError as error:
        raise BackendUnusable(f'"{name}" cannot be imported: {error}', where=origin) from error
    except Exception as error:
        raise PluginError(f'"{name}" failed to load: {type(error).__name__}: {error}', where=origin) from error
