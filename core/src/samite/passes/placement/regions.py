"""Plans of control flow: its regions are placed like functions, with the layouts that go in and out agreed upon.

Branches end in the same layouts: for each result those of the branch that it costs least to follow. What a loop carries
goes in as it comes out: the layouts are a fixed point of its body, or are kept there by force where that is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch

from samite.ir.context import TensorType
from samite.ir.graph import Graph, Node, Op
from samite.layout import Dim, Factor, Layout, axes_of, plan, without
from samite.passes.placement.plans import interned
from samite.passes.placement.search import best_placement
from samite.passes.placement.walk import Placement
from samite.passes.traffic import itemsize
from samite.rules.planning import OpPlan, settle

__all__ = ["ITERATIONS", "RegionPlan", "plan_regions"]

ITERATIONS = 8
"""For how many a `while` is taken: what moves in it moves more than once."""
ROUNDS = 4
"""How often a loop's body is asked what it makes of the layouts that it made."""

Layouts = tuple[Layout, ...]


@dataclass(frozen=True)
class RegionPlan(OpPlan):
    """The plan of an op with regions: `regions` are placed, and `moved` is what they move in one run of the op, in
    bytes: the costlier branch, or all iterations."""

    regions: tuple[Placement, ...] = ()
    moved: int = 0


def plan_regions(node: Node, have: Layouts, mesh: dict[str, int]) -> RegionPlan:
    """`have` are canonical layouts of the operands, of which nothing stays owed."""
    return _planned(node.op, have, tuple(mesh.items()))


@lru_cache(maxsize=256)
def _planned(op: Op, have: Layouts, mesh_items: tuple[tuple[str, int], ...]) -> RegionPlan:
    mesh, given = dict(mesh_items), tuple(settle(layout) for layout in have)
    if op.name == "dist.cond":
        made = _cond(op, given[1:], mesh)
    elif op.name == "dist.while":
        made = _while(op, given, mesh)
    else:
        made = _scan(op, given, mesh)
    needs, results = (tuple(interned(x.canonical(mesh)) for x in layouts) for layouts in (made.needs, made.results))
    return RegionPlan(needs, results, {}, (), made.regions, made.moved)


def _cond(op: Op, given: Layouts, mesh: dict[str, int]) -> RegionPlan:
    then, otherwise = (_natural(region, given, mesh) for region in op.regions)
    followed = tuple(
        a if _bytes(b, a, type, mesh) <= _bytes(a, b, type, mesh) else b
        for a, b, type in zip(then, otherwise, op.results, strict=True)
    )
    plans: list[RegionPlan] = []
    for results in dict.fromkeys((followed, then, otherwise)):
        regions = tuple(best_placement(region, mesh, given, results) for region in op.regions)
        moved = max(region.moved for region in regions)
        plans.append(RegionPlan((_whole(op.operands[0]), *given), results, {}, (), regions, moved))
    return min(plans, key=lambda made: made.moved + _settling(made.results, op.results, mesh))


def _while(op: Op, given: Layouts, mesh: dict[str, int]) -> RegionPlan:
    condition, body = op.regions
    carried = op.literals["carried"]
    looped, placed = _fixed(body, given[:carried], given[carried:], mesh, ITERATIONS)
    needs = (*looped, *given[carried:])
    asked = best_placement(condition, mesh, needs, (Layout.replicated(()),))
    return RegionPlan(needs, looped, {}, (), (asked, placed), (placed.moved + asked.moved) * ITERATIONS)


def _scan(op: Op, given: Layouts, mesh: dict[str, int]) -> RegionPlan:
    carried, sliced = op.literals["carried"], op.literals["sliced"]
    end, length = carried + sliced, op.operands[carried].shape[0]
    steps: Dim = (Factor(length),)
    if not carried:
        steps = _split_steps(given[0].dims[0], length, mesh)
    taken = axes_of(steps)
    slices = tuple(_without(Layout(x.dims[1:]), taken) for x in given[carried:end])
    others = tuple(_without(x, taken) for x in given[end:])
    (body,), (times,) = op.regions, Layout((steps,)).local_shape(mesh)
    looped, placed = _fixed(body, given[:carried], (*slices, *others), mesh, times)
    returned = placed.return_layouts()
    needs = (*looped, *(Layout((steps, *x.dims)) for x in slices), *others)
    results = (*looped, *(Layout((steps, *x.dims), x.kind, x.owed) for x in returned[carried:]))
    return RegionPlan(needs, results, {}, (), (placed,), placed.moved * times)


def _split_steps(steps: Dim, length: int, mesh: dict[str, int]) -> Dim:
    """Iterations that carry nothing may be split among ranks, if each gets as many: none runs on padding."""
    whole: Dim = (Factor(length),)
    return steps if len(steps) == 1 and not steps[0].padded(mesh) else whole


@dataclass(frozen=True)
class _Loop:
    """A loop's body, what it carries at first, what else it takes, and how often it runs."""

    body: Graph
    initial: Layouts
    others: Layouts
    mesh: dict[str, int]
    times: int

    def carrying(self, layouts: Layouts) -> tuple[int, Layouts, Placement]:
        """Cost in bytes, the layouts, and the body placed to carry them. Other results keep what it gives them."""
        types, natural = [a.type for a in self.body.arguments], self.gives(layouts)
        results = (*layouts, *natural[len(layouts) :])
        placed = best_placement(self.body, self.mesh, (*layouts, *self.others), results)
        entering = sum(_bytes(a, b, t, self.mesh) for a, b, t in zip(self.initial, layouts, types, strict=False))
        leaving = _settling(layouts, types, self.mesh)
        return placed.moved * self.times + entering + leaving, layouts, placed

    def gives(self, layouts: Layouts) -> Layouts:
        return _natural(self.body, (*layouts, *self.others), self.mesh)

    def owed(self, layouts: Layouts) -> Iterator[Layouts]:
        """With one more sum owed: terms may be added up by each rank, and settled once at the end."""
        for index, (layout, argument) in enumerate(zip(layouts, self.body.arguments, strict=False)):
            if layout.kind in ("", "sum") and getattr(torch, argument.type.dtype).is_floating_point:
                for axis in self.mesh:
                    if axis not in layout.axes and axis not in layout.owed:
                        owing = Layout(layout.dims, "sum", layout.owed | {axis}).canonical(self.mesh)
                        yield (*layouts[:index], owing, *layouts[index + 1 :])


def _fixed(
    body: Graph, initial: Layouts, others: Layouts, mesh: dict[str, int], times: int
) -> tuple[Layouts, Placement]:
    """The layouts of what a body carries, and the body placed so."""
    loop, layouts = _Loop(body, initial, others, mesh, times), initial
    best = loop.carrying(layouts)
    for _ in range(ROUNDS):
        natural = loop.gives(layouts)[: len(layouts)]
        if natural == layouts:
            break
        layouts = natural
        best = min(best, loop.carrying(layouts), key=_cost)
    if best[2].moved:
        for index in range(len(initial)):
            for owing in loop.owed(best[1]):
                if owing[index] != best[1][index]:
                    best = min(best, loop.carrying(owing), key=_cost)
    _, layouts, placed = best
    return layouts, placed


def _cost(candidate: tuple[int, Layouts, Placement]) -> int:
    return candidate[0]


def _natural(region: Graph, given: Layouts, mesh: dict[str, int]) -> Layouts:
    """What a region gives if nobody asks."""
    return tuple(best_placement(region, mesh, given, [None] * len(region.returns)).return_layouts())


def _whole(type: TensorType) -> Layout:
    return Layout.replicated(type.shape)


def _without(layout: Layout, axes: Iterable[str]) -> Layout:
    return Layout(tuple(without(layout.dims, set(axes)))) if axes else layout


def _bytes(src: Layout, dst: Layout, type: TensorType, mesh: dict[str, int]) -> int:
    return plan(src, dst, mesh).elements * itemsize(type.dtype) if prod(type.shape) else 0


def _settling(layouts: Sequence[Layout], types: Sequence[TensorType], mesh: dict[str, int]) -> int:
    """What it costs to settle what is owed."""
    return sum(_bytes(x, settle(x), t, mesh) for x, t in zip(layouts, types, strict=False) if x.owed)
