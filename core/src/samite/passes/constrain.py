"""constrain: the user's placements become layouts of the arguments they name."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from samite.errors import PlacementError, nearest
from samite.ir.build import rewrite
from samite.ir.graph import Argument
from samite.ir.module import Module
from samite.layout import Layout, from_placements
from samite.placement import as_placements

__all__ = ["Constrain", "Placements", "matches"]

Placements = Mapping[str, Mapping[str, Any]]
"""Name or pattern of arguments ("model.blocks.*.up.weight") -> axis -> placement."""


class Constrain:
    """Of several patterns that match one argument the last wins, axis by axis. Raises PlacementError for a pattern that
    names nothing."""

    name = "constrain"

    def __init__(self, placements: Placements, layouts: Mapping[str, Layout] | None = None) -> None:
        """`layouts` are of arguments that lie somewhere already; placements are stronger."""
        self.placements, self.layouts = placements, layouts or {}

    def run(self, module: Module) -> Module:
        mesh = module.mesh
        arguments = module.graph.arguments
        self._refuse_unknown(arguments)
        made = [self._constrained(a, mesh) for a in arguments]
        return rewrite(module, lambda graph, build: build.inline_all(graph), made, regions=False)

    def _refuse_unknown(self, arguments: tuple[Argument, ...]) -> None:
        names = [a.name for a in arguments]
        for pattern in self.placements:
            if not any(matches(name, pattern) for name in names):
                raise PlacementError(f'placement "{pattern}" names no argument', help=nearest(pattern, names))

    def _constrained(self, argument: Argument, mesh: Mapping[str, int]) -> Argument:
        wanted: dict[str, Any] = {}
        for pattern, placements in self.placements.items():
            if matches(argument.name, pattern):
                wanted |= as_placements(placements)
        if not wanted:
            held = self.layouts.get(argument.name)
            return argument._replace(layout=str(held)) if held is not None else argument
        try:
            layout = from_placements(argument.type.shape, wanted, mesh)
        except PlacementError as error:
            error.what = f"{argument.name}: {error.what}"
            raise
        return argument._replace(layout=str(layout))


def matches(name: str, pattern: str) -> bool:
    """Whether a placement's name or pattern means an argument of this name."""
    return name == pattern or fnmatchcase(name, pattern)
