"""The words users place tensors with: DTensor's, by the name of the mesh axis. Pure values.

`{"dp": Shard(0), "tp": Replicate()}` splits dim 0 over the axis "dp". An axis that is not named replicates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index

from samite.errors import PlacementError, nearest

__all__ = ["REDUCTIONS", "Partial", "Placement", "Replicate", "Shard", "as_placement", "as_placements"]

REDUCTIONS = ("sum", "max", "min", "prod")


@dataclass(frozen=True)
class Shard:
    """Dim `dim` is split over the axis into chunks of equal (ceil) length; a negative dim counts from the end."""

    dim: int

    def __post_init__(self) -> None:
        try:
            if isinstance(self.dim, bool):
                raise TypeError
            object.__setattr__(self, "dim", index(self.dim))
        except TypeError:
            raise PlacementError(
                f"Shard({self.dim!r}) is not a placement",
                help="the number of a dim: Shard(0), or Shard(-1) for the last",
            ) from None


@dataclass(frozen=True)
class Replicate:
    """Every rank of the axis holds the same."""


@dataclass(frozen=True)
class Partial:
    """Every rank of the axis holds a term; the value is their reduction. `reduce_op` is one of REDUCTIONS."""

    reduce_op: str = "sum"

    def __post_init__(self) -> None:
        if self.reduce_op == "avg":
            raise PlacementError(
                'Partial("avg") is not a placement',
                help='an average is a sum and a scale: use Partial("sum") and divide by the number of terms',
            )
        if self.reduce_op not in REDUCTIONS:
            raise PlacementError(f'no reduction "{self.reduce_op}"', help=nearest(str(self.reduce_op), REDUCTIONS))


Placement = Shard | Replicate | Partial


def as_placement(obj: object) -> Placement:
    """Ours as it is; torch.distributed.tensor's `Shard`, `Replicate`, `Partial` as ours. Else PlacementError.

    Torch's are known by type name and attributes, so that placements need no torch. Its subclasses (strided shards,
    masked partials) mean something else and are refused.
    """
    if isinstance(obj, Shard | Replicate | Partial):
        return obj
    name, dim, reduce_op = type(obj).__name__, getattr(obj, "dim", None), getattr(obj, "reduce_op", None)
    if name == "Shard" and isinstance(dim, int):
        return Shard(dim)
    if name == "Replicate":
        return Replicate()
    if name == "Partial" and isinstance(reduce_op, str):
        return Partial("prod" if reduce_op == "product" else reduce_op)
    raise PlacementError(
        f"{obj!r} is not a placement",
        help="use samite.Shard(dim), samite.Replicate() or samite.Partial(reduce_op), or torch.distributed.tensor's",
    )


def as_placements(obj: object) -> dict[str, Placement]:
    """Axis -> placement, each by `as_placement`. Raises PlacementError for what is no mapping from names of axes."""
    if not isinstance(obj, Mapping):
        raise PlacementError(f"{obj!r} says for no axis what it is", help='name the axis of the mesh: {"dp": Shard(0)}')
    placements: dict[str, Placement] = {}
    for axis, placement in obj.items():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(axis, str):
            raise PlacementError(f"{axis!r} is not the name of an axis", help='like "dp", as the mesh has it')
        placements[axis] = as_placement(placement)  # pyright: ignore[reportUnknownArgumentType]
    return placements
