"""The placements that a sample is tried at: every single dim of every tensor split, and some over two axes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from samite.mesh import Mesh
from samite.placement import Shard

__all__ = ["Placed", "describe", "placements"]

Placed = Mapping[int, Mapping[str, Shard]]
"""Tensor -> axis -> how it is split; whatever is not named is whole."""

MESHES = (Mesh(("a",), (2,)), Mesh(("a",), (3,)), Mesh(("a", "b"), (2, 2)))


def placements(tensors: Sequence[Tensor], mesh: Mesh, limit: int | None, chance: random.Random) -> Iterator[Placed]:
    """Over one axis: each dim of each tensor split, all tensors alike, nothing split; over several: drawn at random.

    At most `limit`, chosen by `chance`.
    """
    splits = [(i, dim) for i, x in enumerate(tensors) for dim in range(x.dim())]
    if len(mesh) == 1:
        axis = mesh.axes[0]
        found: list[Placed] = [{i: {axis: Shard(dim)}} for i, dim in splits]
        depth = max((x.dim() for x in tensors), default=0)
        if len(tensors) > 1:
            found += [
                {i: {axis: Shard(-k)} for i, x in enumerate(tensors) if x.dim() >= k} for k in range(1, depth + 1)
            ]
        if limit is not None and len(found) > limit - 1:
            found = chance.sample(found, limit - 1)
        yield {}
        yield from found
        return
    for _ in range(limit or 8):
        if not splits:
            return
        drawn: dict[int, dict[str, Shard]] = {}
        for axis in mesh:
            i, dim = chance.choice(splits)
            drawn.setdefault(i, {})[axis] = Shard(dim)
            for other, x in enumerate(tensors):
                if other != i and x.dim() and chance.random() < 0.3:
                    drawn.setdefault(other, {})[axis] = Shard(chance.randrange(x.dim()))
        yield drawn


def describe(placed: Placed) -> str:
    """ "0: a 1, 2: b 0" for tensor 0 split at dim 1 over a, tensor 2 at dim 0 over b."""
    return (
        ", ".join(f"{i}: " + " ".join(f"{a}{s.dim}" for a, s in axes.items()) for i, axes in placed.items()) or "whole"
    )
