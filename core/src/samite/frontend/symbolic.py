"""One capture for many sizes of a call's inputs.

The function is traced once more, with symbols for the sizes that vary. What other sizes then need is the graph with
numbers in place of symbols, and no Python of the user's.

A symbol is not quite a number to Python (`isinstance(n, int)`, f-strings), so code may take another way with it and no
guard tells. Therefore the graph is compared with one that was captured at plain sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.types import py_sym_types

from samite.errors import CaptureError
from samite.frontend.capture import Capture, capture_call
from samite.frontend.instances import difference, instantiate, number
from samite.frontend.state import StateTree
from samite.frontend.symbols import Dim, Group, Sizes, Symbols

__all__ = ["SymbolicCapture", "capture_symbolically"]


@dataclass(frozen=True)
class SymbolicCapture:
    """`capture` is of a graph with symbols among its sizes, and nodes that compute with them.

    `fixed` are the dims that were to vary but of which the graph needs the size itself, each with the user's line that
    needs it, or "".
    """

    capture: Capture
    fixed: Mapping[Dim, str]
    _symbols: Symbols

    @property
    def varies(self) -> bool:
        """Whether it is for more than one size."""
        return len(self.fixed) < self._symbols.count

    def holds(self, sizes: Sizes) -> bool:
        """Whether a capture at these sizes would be this graph: all that the trace asked about sizes has one answer."""
        return self._symbols.values(sizes) is not None

    def at(self, sizes: Sizes) -> Capture:
        """The capture at sizes for which it `holds`."""
        values = self._symbols.values(sizes)
        assert values is not None, "the graph does not hold for these sizes"
        graph = instantiate(self.capture.graph, values)
        shapes = [tuple(node.meta["val"].shape) for node in graph.graph.find_nodes(op="placeholder")]
        arguments = tuple(replace(a, shape=s) for a, s in zip(self.capture.arguments, shapes, strict=True))
        constants = tuple(_filled(constant, values) for constant in self.capture.constants)
        return replace(self.capture, graph=graph, arguments=arguments, constants=constants)


def _filled(constant: Any, values: Mapping[Any, int]) -> Any:
    if isinstance(constant, py_sym_types):
        return number(constant, values)
    if isinstance(constant, torch.Size):
        return torch.Size(_filled(size, values) for size in constant)
    return constant


def capture_symbolically(tree: StateTree, groups: Sequence[Group], sizes: Sizes, captured: Capture) -> SymbolicCapture:
    """Trace the call of `tree` with a symbol for each of `groups`, dims of its inputs.

    `captured` is a capture of such a call at `sizes`, without symbols. Raises CaptureError if the function does
    something else with symbols; what `capture` raises; and whatever the function or torch raises where it cannot do
    with symbols. A capture that does not vary is not worth using.
    """
    symbols = Symbols(groups, tree.sizes)
    made = SymbolicCapture(capture_call(tree, symbols), symbols.fixed(), symbols)
    if not made.varies:
        return made
    if not made.holds(sizes) or _difference(made.at(sizes), captured) is not None:
        # With symbols torch takes some ops apart by other code, to other ops that compute the same.
        alike = capture_call(tree, Symbols((), tree.sizes))
        if (line := _difference(made.at(tree.sizes), alike)) is not None:
            raise CaptureError("the function does something else if a size is no int", where=line)
    return made


def _difference(one: Capture, other: Capture) -> str | None:
    """None if two captures are the same, else the user's line of the first op that differs, or ""."""
    if any(getattr(one, name) != getattr(other, name) for name in _INTERFACE):
        return ""
    return difference(one.graph, other.graph)


_INTERFACE = ("arguments", "results", "deleted", "output_spec", "constants")
