"""What is known of the devices of a mesh and the links between them, for the cost of placements."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tomllib
from pathlib import Path
from typing import Any

from samite.errors import ConfigError, SamiteError
from samite.mesh import Mesh
from samite.topology import Topology

__all__ = ["configured_topology", "measured_topology", "read_topology"]

log = logging.getLogger("samite")

MEASURE = "measure"
"""The setting that has a mesh measured."""

PROBE = 3
"""What is measured; an earlier probe's files say less."""


def configured_topology(mesh: Mesh) -> Topology:
    """As the settings say: of a file, measured, or usual numbers. Ranks that compile each for itself must choose alike,
    so nothing is measured unless it is asked for. Raises ConfigError."""
    from samite.config import Settings

    wanted = Settings().topology
    if wanted == MEASURE:
        return measured_topology(mesh)
    return read_topology(wanted) if wanted else Topology()


def read_topology(file: str | Path) -> Topology:
    """From a TOML or JSON file, as `Topology.from_dict` takes it. Raises ConfigError that names the file."""
    path = Path(file).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
        data: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path)) from error
    except ValueError as error:
        raise ConfigError(f"not {'JSON' if path.suffix == '.json' else 'TOML'}: {error}", where=str(path)) from error
    try:
        return Topology.from_dict(data)
    except SamiteError as error:
        error.where = str(path)
        raise


def measured_topology(mesh: Mesh) -> Topology:
    """By the mesh's own workers, once: the file that it is kept in serves every later run on this host.

    Raises ConfigError where ranks would each measure something else (torchrun), or there is nothing to measure.
    """
    path = _kept(mesh)
    if path.is_file():
        return read_topology(path)
    if mesh.engine != "local":
        raise ConfigError(
            f'topology = "{MEASURE}": the links of the {mesh.engine} engine cannot be measured',
            help="name a file; a mesh of the local engine measures itself, and logs where that is kept",
        )
    from samite.api.probe import measure

    found = measure(mesh)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(found.to_dict(), indent=2), encoding="utf-8")
    written.replace(path)
    log.info("%s: measured, and kept in %s", mesh, path)
    return found


def _kept(mesh: Mesh) -> Path:
    """The file for a mesh on this host."""
    here = platform.node(), platform.machine(), os.cpu_count()
    key = hashlib.sha256(repr((PROBE, mesh.axes, mesh.shape, mesh.backends, mesh.engine, mesh.options, here)).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "samite" / "topology" / f"{key.hexdigest()[:16]}.json"
