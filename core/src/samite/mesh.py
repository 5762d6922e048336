"""Meshes: the ranks of a run as an n-dimensional grid with named axes. Pure values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from samite.errors import MeshError, nearest

__all__ = ["Mesh"]


class _UnknownAxis(MeshError, KeyError):
    """A MeshError to users, a KeyError to `in`, `get` and all else that `Mapping` promises."""


@dataclass(frozen=True)
class Mesh(Mapping[str, int]):
    """A mapping from axis name to size, in mesh order, over `size` ranks numbered row-major (last axis fastest).

    `backends` are the device stacks in order of preference, `engine` is where the processes run, `options` are the
    engine's own settings, as pairs so that a mesh can be a key. Raises MeshError if an axis has no valid name, is
    there twice, or has a size below 1.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    backends: tuple[str, ...] = ("cpu",)
    engine: str = "local"
    options: tuple[tuple[str, object], ...] = ()

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape):
            raise MeshError(f"a mesh has one size an axis, have {len(self.axes)} axes and {len(self.shape)} sizes")
        for axis, size in zip(self.axes, self.shape, strict=True):
            if not axis.isidentifier():
                raise MeshError(f'mesh axis "{axis}" is not a name', help='name axes like Python variables: "dp", "tp"')
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise MeshError(f'mesh axis "{axis}" has size {size!r}', help="a size is a whole number, 1 or more")
        if twice := sorted({axis for axis in self.axes if self.axes.count(axis) > 1}):
            raise MeshError(f'mesh axis "{twice[0]}" is named twice in {self.axes}', help="give each axis its own name")

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return dict(zip(self.axes, self.shape, strict=True))

    def __getitem__(self, axis: str) -> int:
        try:
            return self._sizes[axis]
        except KeyError:
            raise _UnknownAxis(f'mesh "{self}" has no axis "{axis}"', help=nearest(str(axis), self.axes)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.axes)

    def __len__(self) -> int:
        return len(self.axes)

    def __str__(self) -> str:
        return " ".join([",".join(self.backends), *(f"{axis}={size}" for axis, size in self.items())])

    @property
    def size(self) -> int:
        """The number of ranks."""
        return prod(self.shape)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Index on each axis. Raises MeshError if there is no such rank."""
        if not 0 <= rank < self.size:
            raise MeshError(f'mesh "{self}" has no rank {rank}', help=f"ranks go from 0 to {self.size - 1}")
        at: dict[str, int] = {}
        for axis in reversed(self.axes):
            rank, at[axis] = divmod(rank, self[axis])
        return {axis: at[axis] for axis in self.axes}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The rank at an index on every axis. Raises MeshError for a missing or unknown axis, or an index off it."""
        for axis in coordinates:
            _ = self[axis]
        rank = 0
        for axis, size in self.items():
            if axis not in coordinates:
                raise MeshError(f'no index on axis "{axis}" of mesh "{self}"', help="give an index on every axis")
            if not 0 <= coordinates[axis] < size:
                raise MeshError(
                    f'index {coordinates[axis]} on axis "{axis}" of mesh "{self}"',
                    help=f"indices go from 0 to {size - 1}",
                )
            rank = rank * size + coordinates[axis]
        return rank

    def peers(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """The ranks that differ from `rank` only on `axes`, itself included; the first axis named is the slowest."""
        if len(set(axes)) != len(axes):
            raise MeshError(f"an axis is named twice in {tuple(axes)}", help="name each axis of a group once")
        at = self.coordinates(rank)
        digits = product(*(range(self[axis]) for axis in axes))
        return tuple(self.rank({**at, **dict(zip(axes, index, strict=True))}) for index in digits)

    def groups(self, axes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """All groups of peers over `axes`, each once, by their first rank. They partition the mesh."""
        return tuple(peers for rank in range(self.size) if (peers := self.peers(rank, axes))[0] == rank)
