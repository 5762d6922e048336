"""What the users of values ask for, gathered from the end of a function to its arguments."""

from __future__ import annotations

from collections import Counter

from samite.ir.graph import Node
from samite.layout import Layout, axes_of, without
from samite.passes.placement.plans import interned, plan_node
from samite.passes.placement.walk import Choice, Placement, timeless
from samite.rules.planning import OpPlan

__all__ = ["improved"]


def improved(placement: Placement) -> Placement | None:
    """A placement in which values are made, and arguments stored, as their users need them; None if nobody asks."""
    asked = _Demands(placement)
    given = asked.of_arguments() if placement.results is None else list(placement.given)
    if given == list(placement.given) and asked.wishes == placement.wishes:
        return None
    return Placement(placement.graph, placement.mesh, given, asked.wishes, placement.results, placement.time)


class _Demands:
    """`wishes`: for each value the layout that all its users ask for and it has not, if they agree."""

    def __init__(self, placement: Placement) -> None:
        self.placement, self.graph, self.mesh = placement, placement.graph, placement.mesh
        self.demands: list[list[Layout]] = [[] for _ in self.graph.types]
        self.wishes: dict[int, Layout] = {}
        for value, want in zip(self.graph.returns, placement.return_layouts(), strict=True):
            if want.axes:
                self.demands[value].append(want)
        for node, choice in zip(reversed(self.graph.nodes), reversed(placement.choices), strict=True):
            made = self._as_wished(node, choice)
            for operand, need in zip(node.operands, made.needs, strict=True):
                if need.axes and not need.owed:
                    self.demands[operand].append(need)

    def _as_wished(self, node: Node, choice: Choice) -> OpPlan:
        """The op's plan if its results were made as their users ask for."""
        wish = tuple(self._wish(r, layout) for r, layout in zip(node.results, choice.settled, strict=True))
        if not any(wish) or node.op.regions:
            return choice.plan
        # Operands do not vote for axes that the wish lays out in another way than they do.
        split = [w for w, layout in zip(wish, choice.settled, strict=True) if w is not None and layout.axes]
        moot = {axis for w in split for axis in w.axes}
        have = tuple(self._without(self.placement.layouts[o], moot) for o in node.operands)
        return plan_node(node, have, wish, self.mesh)

    def _wish(self, value: int, layout: Layout) -> Layout | None:
        """Only a value that is not split, or is split over the same axes in another way, can take a wish."""
        demands = self.demands[value]
        if not demands or any(d != demands[0] for d in demands):
            return None
        asked = demands[0]
        if layout.axes and (asked == layout or not _same_split(asked, layout)):
            return None
        self.wishes[value] = asked
        return asked

    def _without(self, layout: Layout, axes: set[str]) -> Layout:
        if not axes:
            return layout
        return interned(Layout(without(layout.dims, axes), layout.kind, layout.owed).canonical(self.mesh))

    def of_arguments(self) -> list[Layout | None]:
        """Unconstrained arguments take what most users ask for. A constraint says which axes split a dim, not how: the
        weight of a fused qkv, three times as tall as its heads, may have each third split."""
        found = list(self.placement.given)
        for index, (argument, given) in enumerate(zip(self.graph.arguments, found, strict=True)):
            others = (d for d in self.demands[index] if given is None or (d != given and _same_split(d, given)))
            asked = Counter(others).most_common(1)
            if asked and not argument.owner:
                found[index] = timeless(asked[0][0], self.placement.time)
        return found


def _same_split(asked: Layout, given: Layout) -> bool:
    """Whether the same axes split the same dims."""
    return [axes_of(d) for d in asked.dims] == [axes_of(d) for d in given.dims]
