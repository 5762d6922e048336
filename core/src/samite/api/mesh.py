"""`samite.mesh`: a mesh from names and sizes, its engine chosen by where the script runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from samite.errors import MeshError
from samite.mesh import Mesh

__all__ = ["mesh"]


def mesh(
    backend: str | Sequence[str] | None = None,
    /,
    *,
    engine: str | None = None,
    options: Mapping[str, Any] | None = None,
    **axes: int,
) -> Mesh:
    """A mesh of devices with named axes: `samite.mesh("cpu", dp=2, tp=2)`. Nothing starts before it is used.

    `backend` is a name or an ordered list of names, by default the configured ones. `engine` is "local" (processes of
    this machine), "lockstep" (all ranks simulated in this process), "inprocess" (one rank), or "torchrun" (this process
    is a rank, the default where torchrun started it). `options` go to the engine: `threads_per_worker`, `timeout_s`,
    `worker_imports` (modules that define custom ops) of "local". Raises MeshError.
    """
    from samite.config import Settings

    if not axes:
        raise MeshError("a mesh needs an axis", help='name one with its size: samite.mesh("cpu", dp=2)')
    if options is not None and not isinstance(options, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MeshError(f"options must map names to values, have {options!r}", help='options={"threads_per_worker": 1}')
    configured = Settings()
    names = configured.backends if backend is None else _names(backend)
    if engine is not None and not isinstance(engine, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MeshError(f"an engine is a name, have {engine!r}", help='engine="local", or "lockstep" to try things out')
    chosen = engine or configured.engine
    if chosen == "auto":
        chosen = "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ or "SAMITE_SPMD" in os.environ else "local"
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in (options or {}).items()}
    return Mesh(tuple(axes), tuple(axes.values()), names, chosen, tuple(sorted(given.items())))


def _names(backend: object) -> tuple[str, ...]:
    names: Any = (backend,) if isinstance(backend, str) else backend
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):  # pyright: ignore
        raise MeshError(f"a backend is a name, or a list of names, have {backend!r}", help='samite.mesh("cpu", dp=2)')
    return tuple(names)
