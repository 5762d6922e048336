"""Layouts in the words that users place tensors with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from samite.layout import Layout

__all__ = ["parts", "words"]


def words(layout: Layout, mesh: Mapping[str, int]) -> str:
    """A layout as placements by axis: "dp: Shard(0), tp: Shard(1)"; "Replicate()" where no axis splits or owes.

    Any layout has such words. What `Shard` alone cannot say is added: "tp: Shard(0) in each of 3" where a dim is cut in
    3 equal runs first (a fused qkv weight), "tp·dp: Shard(0)" where several axes split one run, outermost first, and
    "Replicate() at pp=1" where only the ranks with that index hold it.
    """
    canonical = layout.canonical(mesh)
    said = [*_splits(canonical)]
    if canonical.owed:
        said.append(f"{'·'.join(axis for axis in mesh if axis in canonical.owed)}: Partial({canonical.kind})")
    home = ".".join(f"{axis}={index}" for axis, index in canonical.at)
    return (", ".join(said) or "Replicate()") + (f" at {home}" if home else "")


def _splits(layout: Layout) -> Iterator[str]:
    for index, dim in enumerate(layout.dims):
        before = 1
        for factor in dim:
            if factor.axes:
                yield f"{'·'.join(factor.axes)}: Shard({index})" + (f" in each of {before}" if before > 1 else "")
            before *= factor.size


def parts(layout: Layout, mesh: Mapping[str, int]) -> dict[int, int]:
    """The dims that are split, and in how many parts each."""
    axes = {
        index: [axis for factor in dim for axis in factor.axes] for index, dim in enumerate(layout.canonical(mesh).dims)
    }
    return {index: prod(mesh[axis] for axis in split) for index, split in axes.items() if split}
