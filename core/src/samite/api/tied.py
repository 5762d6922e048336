"""Placements of tensors that have several names: tied weights, and one tensor that is passed twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from samite.errors import PlacementError
from samite.frontend import StateTree
from samite.passes.constrain import Placements, matches
from samite.placement import as_placements

__all__ = ["untied"]


def untied(placements: Placements, tree: StateTree) -> Placements:
    """The same by the names that the program's arguments have: a tensor has that under which it is met first.

    Raises PlacementError if two names of one tensor are placed differently.
    """
    found: dict[str, Mapping[str, Any]] = dict(placements)
    others = [(name, first) for name, first in _other_names(tree) if any(matches(name, each) for each in placements)]
    for name, first in others:
        wanted, known = _wanted(name, placements), _wanted(first, found)
        if known and known != wanted:
            raise PlacementError(
                f'"{first}" and "{name}" are one tensor here, and are placed differently: {_spelled(known)} and '
                f"{_spelled(wanted)}",
                help=f"place it by one of its names, or give {name}.clone()",
            )
        found[first] = wanted
    names = [leaf.name for leaf in tree.leaves]
    for pattern in {each for each in placements for name, _ in others if matches(name, each)}:
        if not any(matches(name, pattern) for name in names):
            del found[pattern]  # it named nothing else
    return found


def _other_names(tree: StateTree) -> Iterator[tuple[str, str]]:
    """(another name, the argument's name) of every tensor that has several."""
    for name, value in zip(tree.call.names, tree.call.values, strict=True):
        if id(value) in tree.index and name not in tree.by_name:
            yield name, tree.leaves[tree.index[id(value)]].name
    for prefix, module in tree.modules:
        for own, tensor in (*module._parameters.items(), *module._buffers.items()):
            name = f"{prefix}.{own}"
            if tensor is not None and id(tensor) in tree.index and name not in tree.by_name:
                yield name, tree.leaves[tree.index[id(tensor)]].name


def _wanted(name: str, placements: Placements) -> dict[str, Any]:
    """Of several that match the last wins, axis by axis."""
    wanted: dict[str, Any] = {}
    for pattern, each in placements.items():
        if matches(name, pattern):
            wanted |= as_placements(each)
    return wanted


def _spelled(wanted: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{axis}: {placement}" for axis, placement in wanted.items()) + "}"
