"""Placing one call: layouts of all its values, found by the compiler's passes from those of its operands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from samite.eager.calls import Call, facts
from samite.eager.local import LocalProgram
from samite.eager.tracing import ResultType, Traced, trace_call
from samite.ir.graph import Graph
from samite.ir.module import Module
from samite.layout import Layout
from samite.mesh import Mesh
from samite.rules.planning import settle

__all__ = ["Placed", "place_call", "settled_first"]


@dataclass(frozen=True, eq=False)
class Placed:
    """A traced call whose values all have layouts. `direct` tells that it is one op, the called one, with its literals
    as they were given. `name` is for messages."""

    name: str
    traced: Traced
    module: Module
    layouts: tuple[Layout, ...]
    direct: bool

    @cached_property
    def local(self) -> LocalProgram:
        """What each rank does."""
        return LocalProgram.of(self.module, self.name)

    @property
    def results(self) -> tuple[ResultType | int | None, ...]:
        return self.traced.results


def place_call(call: Call, mesh: Mesh) -> Placed:
    """Results keep what their op leaves them owing; what is written keeps its layout, and `*_like` takes that of its
    operand. Raises RuleMissing, LayoutError, and what `trace_call` raises."""
    from samite.passes.constrain import Constrain
    from samite.passes.normalise import Normalise
    from samite.passes.place import Place

    traced = trace_call(call, mesh)
    have = [Layout.replicated(leaf.type.shape) if leaf.layout is None else leaf.layout for leaf in call.leaves]
    new = [result for result in traced.results if isinstance(result, ResultType)]
    wanted: list[Layout | None] = [_alike(call, result, have) for result in new]
    wanted += [have[i] for i in traced.written]
    module = Normalise().run(traced.module)
    direct = _is_direct(call, module.graph)
    module = Constrain({}, {f"a{i}": layout for i, layout in enumerate(have)}).run(module)
    module = Place(wanted).run(module)
    return Placed(str(call.func), traced, module, tuple(map(Layout.parse, module.graph.return_layouts)), direct)


def settled_first(placed: Placed, call: Call) -> tuple[int, ...]:
    """Leaves that owe a reduction and are used only when it is paid in full. Views have to show what there is."""
    if facts(call.func).views:
        return ()
    graph = placed.module.graph
    users = graph.users()
    found: list[int] = []
    for index, leaf in enumerate(call.leaves):
        if leaf.layout is None or not leaf.layout.owed or leaf.written or not users[index]:
            continue
        paid = str(settle(leaf.layout))
        uses = [graph.nodes[user].op for user in users[index] if user < len(graph.nodes)]
        if len(uses) == len(users[index]) and all(
            op.name == "dist.reshard" and op.literals["dst"] == paid for op in uses
        ):
            found.append(index)
    return tuple(found)


_LIKE = frozenset(f"aten.{name}_like" for name in ("empty", "full", "ones", "rand", "randn", "zeros"))
_NEW = frozenset(f"aten.new_{name}" for name in ("empty", "empty_strided", "full", "ones", "zeros"))


def _alike(call: Call, result: ResultType, have: list[Layout]) -> Layout | None:
    """The layout of a tensor that is made after another one: the last, since a random op has its seed first."""
    name = str(call.func).rpartition(".")[0]
    after = name in _LIKE or (name in _NEW and result.type.shape == call.leaves[0].type.shape)
    return settle(have[-1]) if after else None


def _is_direct(call: Call, graph: Graph) -> bool:
    """Whether the graph is the called op, or the op that it does in place, over its tensors in order. The importer may
    choose another overload: one that takes a number has a name of its own there."""
    if len(graph.nodes) != 1 or not hasattr(call.func, "_schema"):
        return False
    node = graph.nodes[0]
    if node.operands != tuple(range(len(call.leaves))) or graph.returns != node.results:
        return False
    return _packet(node.op.name) == _packet(str(call.func)).removesuffix("_")


def _packet(name: str) -> str:
    """ "aten.add" of "aten.add.Tensor"."""
    return ".".join(name.split(".")[:2])
