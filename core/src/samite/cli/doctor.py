"""`samite doctor`: what is installed, what of it works here, and what is configured."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from samite import plugins
from samite.config import Settings
from samite.hal.driver import Device
from samite.plugins import PluginInfo
from samite.plugins.discovery import how_to_install
from samite.report import plain_table

__all__ = ["Diagnosis", "diagnose", "diagnosis_as_text"]

_STYLES = {"active": "green", "unusable": "red", "absent": "yellow"}
_PACKAGES = ("samite", "torch", "torch-mlir")


@dataclass(frozen=True)
class Diagnosis:
    """`versions` are (what, version); `devices` (backend, device); `settings` (name, value, where it is from).

    `problems` says of everything configured that does not work here why; with none, Samite is ready.
    """

    versions: tuple[tuple[str, str], ...]
    plugins: tuple[PluginInfo, ...]
    devices: tuple[tuple[str, Device], ...]
    settings: tuple[tuple[str, str, str], ...]
    problems: tuple[str, ...]


def diagnose(settings: Settings) -> Diagnosis:
    """Tries every plugin that is installed; starts no worker."""
    found = list(plugins.listing(settings.backends))
    wanted = [*settings.backends]
    if settings.engine != "auto":
        wanted.append(settings.engine)
        if not any(each.name == _short(settings.engine) for each in found):
            reason = how_to_install(settings.engine)
            found.append(PluginInfo(settings.engine, "", "engine", "absent", reason=reason))
    devices: list[tuple[str, Device]] = []
    problems = list(_unmet(wanted, found))
    for each in found:
        if each.kind == "backend" and each.state == "active":
            try:
                there = plugins.driver(each.name).devices()
            except Exception as error:  # a plugin's own code; whatever it is, it belongs in the diagnosis
                problems.append(f"{each.name} cannot list its devices: {type(error).__name__}: {error}")
                continue
            devices += [(each.name, device) for device in there]
            if not there and each.name in map(_short, wanted):
                problems.append(f"{each.name} has no device here")
    sources = settings.sources()
    values = tuple((name, _value(value), sources[name]) for name, value in settings)
    return Diagnosis(tuple(_versions()), tuple(found), tuple(devices), values, tuple(problems))


def _unmet(wanted: list[str], found: list[PluginInfo]) -> Iterator[str]:
    for name in wanted:
        for each in found:
            if each.name in (name, _short(name)) and each.state != "active":
                yield f"{each.name} is {each.state}: {each.reason}"


def _short(name: str) -> str:
    """ "cpu" of "samite/cpu/v1"."""
    return name.split("/")[-2] if "/" in name else name


def _value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    for package in _PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed"


def diagnosis_as_text(diagnosis: Diagnosis) -> RenderableType:
    """Tables, and a last line that says whether Samite is ready."""
    if diagnosis.problems:
        reasons = Text("".join(f"\n  {problem}" for problem in diagnosis.problems))
        verdict = Text("Not ready.", style="bold red") + reasons
    else:
        verdict = Text("Ready.", style="bold green")
    tables = (_plugins(diagnosis), _devices(diagnosis), _settings(diagnosis))
    versions = Text("  ".join(f"{what} {version}" for what, version in diagnosis.versions))
    return Group(versions, "", *(line for table in tables for line in (table, "")), verdict)


def _plugins(diagnosis: Diagnosis) -> Table:
    table = plain_table("Backends and engines", "name", "kind", "state", "full name", "distribution", "why")
    for each in diagnosis.plugins:
        state = Text(each.state, style=_STYLES[each.state])
        table.add_row(each.name, each.kind, state, each.full_name, each.origin, Text(each.reason))
    return table


def _devices(diagnosis: Diagnosis) -> Table:
    numbers = ("memory", "bandwidth", "latency", "NUMA node")
    table = plain_table("Devices", "device", "name", *numbers, "memory mechanism", right=numbers)
    for backend, device in diagnosis.devices:
        table.add_row(
            f"{backend}:{device.index}",
            Text(device.name),
            decimal(device.memory) if device.memory else "unknown",
            f"{decimal(int(device.bandwidth))}/s" if device.bandwidth else "unknown",
            f"{1e6 * device.latency:.2f} µs" if device.latency else "unknown",
            str(device.numa_node) if device.numa_node >= 0 else "none",
            Text(device.memory_mechanism),
        )
    return table


def _settings(diagnosis: Diagnosis) -> Table:
    table = plain_table("Settings", "setting", "value", "from")
    for name, value, source in diagnosis.settings:
        table.add_row(name, Text(value), Text(source, style="dim" if source == "default" else ""))
    return table
