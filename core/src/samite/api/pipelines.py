"""What a user may say of pipelines: on a mesh with an axis `pp` a function is cut into stages along it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from samite.errors import ConfigError, MeshError, PlacementError, nearest
from samite.layout import Layout
from samite.mesh import Mesh
from samite.passes.constrain import Placements
from samite.passes.split_microbatches import MICROBATCH

__all__ = ["PIPELINE", "PipelineOptions", "inner_mesh", "most_turns", "refuse_placements"]

PIPELINE = "pp"
"""The axis of a mesh that stages lie along."""
MOST_TURNS = 4
"""Microbatches a rank, where the user does not say: more make each too small to be fast."""


@dataclass(frozen=True)
class PipelineOptions:
    """What a user says of a pipeline. `microbatches` None: as many as divide the batch, up to four a rank; `schedule`
    "auto": the one that is fastest in simulation; `stages` None: one a rank."""

    microbatches: int | None = None
    schedule: str = "auto"
    stages: int | None = None

    def check(self, mesh: Mesh | None) -> None:
        """Raises ConfigError for what means nothing, or nothing on this mesh."""
        from samite.schedules import SCHEDULES

        for name, value in (("microbatches", self.microbatches), ("stages", self.stages)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name} is {value!r}", help="a whole number, 1 or more")
        if self.schedule not in ("auto", *SCHEDULES):
            raise ConfigError(f'no schedule "{self.schedule}"', help=nearest(str(self.schedule), ("auto", *SCHEDULES)))
        if self != PipelineOptions() and (mesh is None or PIPELINE not in mesh):
            raise ConfigError(
                "microbatches, schedule and stages are those of a pipeline",
                help=f'give the mesh an axis "{PIPELINE}": samite.mesh("cpu", {PIPELINE}=2)',
            )


def inner_mesh(mesh: Mesh, microbatches: int = 1) -> Mesh:
    """The mesh of one stage, with microbatches as its first axis. Raises MeshError where the user has that name."""
    if MICROBATCH in mesh:
        raise MeshError(
            f'the axis "{MICROBATCH}" is that of microbatches where a mesh has an axis "{PIPELINE}"',
            help="name it otherwise",
        )
    axes = {MICROBATCH: microbatches} | {axis: size for axis, size in mesh.items() if axis != PIPELINE}
    return Mesh(tuple(axes), tuple(axes.values()), mesh.backends, mesh.engine, mesh.options)


def refuse_placements(placements: Placements) -> None:
    """Raises PlacementError for a placement along the axis of stages."""
    for name, wanted in placements.items():
        if PIPELINE in wanted:
            raise PlacementError(
                f'"{name}": stages lie along "{PIPELINE}", nothing is split over it',
                help="say where stages begin by samite.stage()",
            )


def most_turns(mesh: Mesh, batches: Sequence[Layout]) -> int:
    """The most microbatches, up to `MOST_TURNS` a rank, into which the first dim of every layout can be cut."""
    rows: list[int] = []
    for layout in batches:
        first = layout.dims[0][0]
        parts = prod(mesh[axis] for axis in first.axes)
        rows.append(first.size // parts if first.size % parts == 0 else 1)
    most = MOST_TURNS * mesh[PIPELINE]
    return max((n for n in range(1, most + 1) if gcd(*rows) % n == 0), default=1) if rows else 1
