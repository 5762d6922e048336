"""The engine of worker processes on this machine: what a mesh may ask of it, and how it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from samite.config import Settings
from samite.hal import hookimpl
from samite.hal.engine import Engine
from samite.mesh import Mesh
from samite.runtime.local_workers import LocalWorkers
from samite.runtime.options import check_options

__all__ = ["Local", "LocalWorkers", "Plugin"]

OPTIONS = ("shared_memory", "threads_per_worker", "timeout_s", "worker_imports")


class Plugin:
    org = "samite"

    @hookimpl
    def samite_add_engines(self) -> Mapping[str, Callable[[], Engine]]:
        return {"local": Local}


class Local:
    """Options: `threads_per_worker` and `timeout_s` (default: as configured), `worker_imports`: names of modules that
    workers import before anything else, such as those that register custom ops or plugins, `shared_memory`: whether
    backends are offered some for their collectives (default: True)."""

    def __init__(self) -> None:
        self.max_ranks = Settings().max_workers

    def start(self, mesh: Mesh, options: Mapping[str, Any]) -> LocalWorkers:
        check_options("local", options, OPTIONS)
        configured = Settings()
        threads = int(options.get("threads_per_worker", configured.threads_per_worker))
        imports = options.get("worker_imports", ())
        return LocalWorkers(
            mesh,
            threads=threads or max(1, len(os.sched_getaffinity(0)) // mesh.size),
            timeout=float(options.get("timeout_s", configured.timeout_s)),
            imports=(imports,) if isinstance(imports, str) else tuple(imports),
            shared_memory=bool(options.get("shared_memory", True)),
        )
