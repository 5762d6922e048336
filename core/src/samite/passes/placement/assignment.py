"""A layout for every value of a function, from one plan for every op, and what it costs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

from samite.ir.graph import Graph, Node
from samite.layout import Layout
from samite.passes.placement.costs import Costs
from samite.passes.placement.memory import Peak, peak
from samite.passes.placement.plans import interned
from samite.passes.placement.walk import Choice
from samite.rules.planning import OpPlan, settle

__all__ = ["Assignment"]

UPDATE = "update"
"""The phase that nothing of a step waits for but its end."""


class Assignment:
    """`arguments` are their layouts, `plans` are of all nodes; the rest follows. Has what `Place` writes a module from:
    `layouts` of all values, `choices`, `producers`, `return_layouts()`.

    A value that owes a reduction which several ops need done in different layouts is settled where it is made, or each
    of them would reduce it. `results` are as `Place` takes them, `inputs` are the arguments that are no state. With
    `again` an argument that is used in another layout is brought into it once a phase, and let go between: gathered
    parameters are not kept from the forward to the backward pass.
    """

    def __init__(
        self,
        graph: Graph,
        arguments: Sequence[Layout],
        plans: Sequence[OpPlan],
        costs: Costs,
        results: Sequence[Layout | None] | None = None,
        inputs: Collection[int] = (),
        *,
        again: bool = False,
    ) -> None:
        self.inputs, self.again = inputs, again
        self.graph, self.costs, self.plans, self.results = graph, costs, tuple(plans), results
        self.mesh = costs.mesh
        self.layouts: list[Layout] = [*arguments]
        self.producers = {r: index for index, node in enumerate(graph.nodes) for r in node.results}
        self.choices: list[Choice] = []
        wanted = self._wanted()
        for node, made in zip(graph.nodes, plans, strict=True):
            settled = tuple(
                self._settled(r, layout, wanted[r]) for r, layout in zip(node.results, made.results, strict=True)
            )
            self.layouts.extend(settled)
            self.choices.append(Choice(made, settled))

    def copying_again(self) -> Assignment:
        """The same with `again`: less memory, more communication."""
        return Assignment(
            self.graph, self.arguments, self.plans, self.costs, self.results, inputs=self.inputs, again=True
        )

    @property
    def arguments(self) -> list[Layout]:
        return self.layouts[: len(self.graph.arguments)]

    def _wanted(self) -> list[set[Layout]]:
        """What the users of each value need it as."""
        wanted: list[set[Layout]] = [set() for _ in self.graph.types]
        for node, made in zip(self.graph.nodes, self.plans, strict=True):
            for operand, need in zip(node.operands, made.needs, strict=True):
                wanted[operand].add(need)
        for value, alias in zip(self.graph.returns, self.graph.aliases, strict=True):
            if alias >= 0 and self.results is None:
                wanted[value].add(self.layouts[alias])
        return wanted

    def _settled(self, value: int, layout: Layout, wanted: set[Layout]) -> Layout:
        if not layout.owed or len(wanted) < 2 or any(want.owed for want in wanted):
            return layout
        ways = sorted({interned(settle(layout)), *wanted}, key=str)
        type = self.graph.types[value]

        def total(way: Layout) -> float:
            return self.costs.reshard(layout, way, type) + sum(self.costs.reshard(way, w, type) for w in wanted)

        return min(ways, key=total)

    def return_layouts(self) -> list[Layout]:
        """As `Placement.return_layouts`."""
        if self.results is not None:
            found = zip(self.graph.returns, self.results, strict=True)
            return [self.layouts[v] if want is None else interned(want.canonical(self.mesh)) for v, want in found]
        return [
            self.layouts[alias] if alias >= 0 else interned(settle(self.layouts[value]))
            for value, alias in zip(self.graph.returns, self.graph.aliases, strict=True)
        ]

    def copied_for(self, value: int, node: Node) -> str:
        """Which of several copies of a value in one layout a node uses."""
        return node.source.phase if self.again and value < len(self.graph.arguments) else ""

    def reshards(self) -> Iterator[tuple[int, Layout, Layout, bool]]:
        """(value, from, to, whether something waits for it), each once, whoever asks."""
        waits: dict[tuple[int, Layout, Layout, str], bool] = {}
        for node, choice in zip(self.graph.nodes, self.choices, strict=True):
            for result, made, final in zip(node.results, choice.plan.results, choice.settled, strict=True):
                if made is not final:
                    waits[result, made, final, ""] = any(
                        user < len(self.graph.nodes) and self.graph.nodes[user].source.phase != UPDATE
                        for user in self.users[result]
                    )
            for operand, need in zip(node.operands, choice.plan.needs, strict=True):
                have = self.layouts[operand]
                if have is not need:
                    key = operand, have, need, self.copied_for(operand, node)
                    waits[key] = waits.get(key, False) or node.source.phase != UPDATE
        for value, want in zip(self.graph.returns, self.return_layouts(), strict=True):
            if self.layouts[value] is not want:
                waits.setdefault((value, self.layouts[value], want, ""), False)
        for (value, src, dst, _), waiting in waits.items():
            yield value, src, dst, waiting

    @cached_property
    def users(self) -> list[list[int]]:
        return self.graph.users()

    @cached_property
    def seconds(self) -> float:
        """The time of one run on a rank, as the cost model sees it."""
        return self.handing + self.computing + self.communicating

    @cached_property
    def handing(self) -> float:
        """Seconds that arguments take before the program starts."""
        found = zip(self.graph.arguments, self.arguments, strict=True)
        return sum(self.costs.argument(a.type, at, is_input=i in self.inputs) for i, (a, at) in enumerate(found))

    @cached_property
    def peak(self) -> Peak:
        """The most that a rank holds at a time."""
        return peak(self)

    @cached_property
    def computing(self) -> float:
        return sum(self.costs.op(node.op, made) for node, made in zip(self.graph.nodes, self.plans, strict=True))

    @cached_property
    def communicating(self) -> float:
        types = self.graph.types
        return sum(self.costs.reshard(src, dst, types[v], waits=waits) for v, src, dst, waits in self.reshards())
