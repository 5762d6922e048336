"""Plans of single ops, made once per op and layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samite.errors import LayoutError
from samite.ir.graph import Node
from samite.layout import Layout, refuse_pinned
from samite.rules.binding import bind
from samite.rules.planning import OpPlan, plan_op

__all__ = ["interned", "plan_node"]

_plans: dict[Any, OpPlan] = {}
_layouts: dict[Layout, Layout] = {}


def interned(layout: Layout) -> Layout:
    """The one object of all equal layouts: thousands of values share a few, and most comparisons are of the same."""
    return _layouts.setdefault(layout, layout)


def plan_node(node: Node, have: tuple[Layout, ...], wish: tuple[Layout | None, ...], mesh: dict[str, int]) -> OpPlan:
    """`plan_op` of a node, cached, with interned layouts. Raises LayoutError with the user's line."""
    key = (node.op, have, wish, tuple(mesh.items()))
    found = _plans.get(key)
    if found is None:
        try:
            made = _constrained(node, mesh) or plan_op(bind(node.op), have, mesh, wish)
        except LayoutError as error:
            raise LayoutError(f"{node.op}: {error.what}", where=node.source.line, help=error.help) from error
        needs, results = (tuple(map(interned, layouts)) for layouts in (made.needs, made.results))
        found = _plans[key] = replace(made, needs=needs, results=results)
    return found


def _constrained(node: Node, mesh: dict[str, int]) -> OpPlan | None:
    """A `dist.constrain` is its own plan: the value must lie as it says."""
    if node.op.name != "dist.constrain":
        return None
    layout = Layout.parse(node.op.literals["layout"]).canonical(mesh)
    refuse_pinned([layout], "a program constrains")
    return OpPlan((layout,), (layout,), {})
