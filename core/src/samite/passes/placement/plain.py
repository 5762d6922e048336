"""Layouts to give to arguments, from which plain ways to split a step follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from samite.ir.graph import Argument, Graph
from samite.layout import Factor, Layout
from samite.rules.strategies import placings

__all__ = ["batched", "over_all_axes"]


def batched(graph: Graph, inputs: frozenset[int]) -> dict[int, int]:
    """The inputs that have the size of the batch as dim 0: the size that most of them have."""
    sizes = Counter(graph.arguments[i].type.shape[0] for i in sorted(inputs) if graph.arguments[i].type.shape)
    if not sizes:
        return {}
    (batch, _), *_ = sizes.most_common(1)
    return {i: 0 for i in inputs if graph.arguments[i].type.shape[:1] == (batch,)}


def over_all_axes(
    graph: Graph, given: Sequence[Layout | None], mesh: Mapping[str, int], dims: Mapping[int, int]
) -> list[Layout | None]:
    """`given`, and the arguments of `dims` split over all axes along that dim; -1 is the longest."""
    found = list(given)
    for i, dim in dims.items():
        if found[i] is None:
            found[i] = _split(graph.arguments[i], dim, mesh)
    return found


def _split(argument: Argument, dim: int, mesh: Mapping[str, int]) -> Layout | None:
    """None if no axis fits."""
    shape = argument.type.shape
    if not shape:
        return None
    at = max(range(len(shape)), key=lambda d: shape[d]) if dim < 0 else dim
    factors = (Factor(shape[at]),)
    for axis in mesh:
        factors = next(placings(factors, axis, mesh), factors)
    dims = tuple((Factor(n),) if d != at else factors for d, n in enumerate(shape))
    return Layout(dims) if any(f.axes for f in factors) else None
