"""What a placement costs, in seconds of one rank: ops by the roofline of the device, reshards by the links."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from samite.ir.context import TensorType
from samite.ir.graph import Op
from samite.layout import Layout, plan
from samite.passes.communication import Communication
from samite.passes.fragments import local_op
from samite.passes.placement.regions import ITERATIONS, RegionPlan
from samite.passes.roofline import flops, moves_nothing, roof
from samite.passes.traffic import collectives, itemsize
from samite.rules.binding import bind
from samite.rules.planning import OpPlan
from samite.topology import Topology

__all__ = ["Costs"]

TIE = 1e-9
"""Seconds: less than anything that a choice could gain."""


class Costs:
    """Prices on one mesh, cached: ops and layouts are few, whatever the depth of a model."""

    def __init__(self, mesh: Mapping[str, int], topology: Topology) -> None:
        self.mesh, self.topology = dict(mesh), topology
        self.communication = Communication(mesh, topology)
        self._items = tuple(mesh.items())
        self._ops: dict[tuple[Op, tuple[Layout, ...], tuple[Layout, ...]], float] = {}
        self._ways: dict[tuple[Layout, Layout, str], tuple[float, float, float]] = {}

    def op(self, op: Op, made: OpPlan) -> float:
        """Seconds that an op takes on a shard, and what its expansion communicates."""
        key = op, made.needs, made.results
        found = self._ops.get(key)
        if found is None:
            if isinstance(made, RegionPlan):
                found = self._regions(op, made)
            else:
                found = self._compute(op, made) + self._inside(op, made)
            self._ops[key] = found
        return found

    def reshard(self, src: Layout, dst: Layout, type: TensorType, *, waits: bool = True) -> float:
        """Seconds from one layout to another. Reductions that nothing waits for (`waits` is False: gradients on their
        way to the optimizer) travel in one bucket and pay no latency of their own."""
        if src == dst:
            return 0.0
        key = src, dst, type.dtype
        found = self._ways.get(key)
        if found is None:
            found = self._ways[key] = self._way(src, dst, itemsize(type.dtype))
        bucketed, latency, wire = found
        return bucketed + latency + wire if waits else latency + wire

    def argument(self, type: TensorType, layout: Layout, *, is_input: bool) -> float:
        """Seconds that an argument takes before the program starts: inputs are handed to a rank, as much as it holds.
        Of layouts that cost the same the plainest is to win, so factors beyond one a dim and axes cost next to
        nothing."""
        handed = self.nbytes(type, layout) / self.topology.device.bandwidth if is_input else 0.0
        return handed + TIE * (sum(len(dim) - 1 for dim in layout.dims) + len(layout.axes))

    def nbytes(self, type: TensorType, layout: Layout) -> int:
        """Bytes that a rank holds of a value."""
        return layout.local_size(self.mesh) * itemsize(type.dtype)

    def _way(self, src: Layout, dst: Layout, size: int) -> tuple[float, float, float]:
        """Seconds of latency that a bucket saves, of other latency, and on the wire and in memory."""
        bucketed = latency = wire = 0.0
        for step in plan(src, dst, self.mesh).steps:
            n = self.mesh[step.axis]
            held = prod(step.slots(self.mesh))
            chunk = (
                held
                if step.target is None
                else held // max(step.slots(self.mesh)[step.target], 1) * step.chunk(self.mesh)
            )
            if step.verb in ("shard", "owe"):
                latency += self.topology.device.latency
                wire += 2 * size * chunk / self.topology.device.bandwidth
                continue
            received = {"all_reduce": 2 * (n - 1) * -(-held // n), "all_gather": (n - 1) * held}
            elements = received.get(step.verb, (n - 1) * chunk)
            if step.verb == "all_reduce":
                bucketed += self.topology.cost(0, step.axis)
            else:
                latency += self.topology.cost(0, step.axis)
            wire += self.topology.cost(elements * size, step.axis, messages=0)
        return bucketed, latency, wire

    def _compute(self, op: Op, made: OpPlan) -> float:
        if moves_nothing(op.name):
            return 0.0
        traffic = sum(map(self.nbytes, op.operands, made.needs)) + sum(map(self.nbytes, op.results, made.results))
        share = 1.0
        if made.given:
            bound = bind(op)
            partners = {y for x in made.given if x in bound.partners for y in bound.partners[x] if y < x}
            for letter, dim in made.given.items():
                if letter not in partners and bound.sizes[letter]:
                    share *= prod(f.local(self.mesh) for f in dim) / bound.sizes[letter]
        device = self.topology.device
        masked = sum(2 * self.nbytes(op.operands[m.operand], made.needs[m.operand]) for m in made.masks)
        return roof(op, device, flops(op) * share, traffic) + masked / device.bandwidth

    def _regions(self, op: Op, made: RegionPlan) -> float:
        """The ops of a loop as often as it runs, of the costlier branch once, and what moves between them."""
        each = [
            sum(self.op(node.op, choice.plan) for node, choice in zip(placed.graph.nodes, placed.choices, strict=True))
            for placed in made.regions
        ]
        moving = max(self.topology.cost(made.moved, axis) for axis in self.mesh) if made.moved else 0.0
        if op.name == "dist.cond":
            return max(each) + moving
        times = ITERATIONS
        if op.name == "dist.scan":
            times = made.needs[op.literals["carried"]].local_shape(self.mesh)[0]
        return sum(each) * times + moving

    def _inside(self, op: Op, made: OpPlan) -> float:
        """Seconds in the collectives of an expansion."""
        if not made.given or not bind(op).expanded.keys() & made.given.keys():
            return 0.0
        body = local_op(op, made.needs, made.results, self._items).body
        if body is None:
            return 0.0
        return sum(self.communication.received(c.nbytes, c.axes) for c in collectives(body, self.mesh))
