"""verify: what every local module promises to backends."""

from __future__ import annotations

from collections.abc import Mapping

from samite.errors import InputError, VerifyError
from samite.ir.context import TensorType
from samite.ir.graph import Argument, Graph
from samite.ir.module import Module
from samite.layout import Layout

__all__ = ["Verify"]

_GLOBAL = ("dist.reshard", "dist.constrain")
_PRODUCTS = frozenset(f"aten.{op}" for op in ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "convolution"))


class Verify:
    """Raises VerifyError if MLIR's invariants are broken, if an op of the global program is left, or if an argument or
    result is not what its layout gives a rank, or an argument not what replaces it; InputError for products of unlike
    dtypes."""

    name = "verify"

    def run(self, module: Module) -> Module:
        module.verify()
        self._function(module.graph, module.mesh)
        return module

    def _function(self, graph: Graph, mesh: Mapping[str, int]) -> None:
        for node in graph.nodes:
            for region in node.op.regions:
                self._function(region, mesh)
            if node.op.name in _GLOBAL:
                raise VerifyError(f"{node.op.name} is left after partition", where=node.source.line)
            if node.op.name in _PRODUCTS and len(dtypes := {t.dtype for t in node.op.operands}) > 1:
                # Fake kernels let this pass; the real ones would fail in the middle of a step.
                raise InputError(
                    f"{node.op}: operands of {' and '.join(sorted(dtypes))}",
                    where=node.source.line,
                    help="cast one of them: x.to(weight.dtype)",
                )
        _check_starts(graph)
        for argument in graph.arguments:
            _check_local(argument.name, argument.layout, argument.type, mesh)
        ends = zip(graph.returns, graph.aliases, graph.return_layouts, strict=True)
        for index, (value, alias, layout) in enumerate(ends):
            _check_local(f"result {index}", layout, graph.types[value], mesh)
            if alias >= 0:
                _check_successor(graph.arguments[alias], graph.types[value], layout)


def _check_starts(graph: Graph) -> None:
    """Every start has its own token and one user, a wait, and waits only on what was started before it."""
    users, tokens = graph.users(), set[int]()
    for node in graph.nodes:
        if node.op.name != "dist.start":
            continue
        token, wait_on = node.op.literals["token"], node.op.literals["wait_on"]
        waits = [u for u in users[node.results[0]] if u < len(graph.nodes) and graph.nodes[u].op.name == "dist.wait"]
        if len(waits) != 1 or len(users[node.results[0]]) != 1:
            raise VerifyError(f"dist.start {token}: one dist.wait uses what it starts", where=node.source.line)
        if token in tokens or not tokens.issuperset(wait_on):
            what = "has another's token" if token in tokens else f"waits on {list(wait_on)}, not all started before it"
            raise VerifyError(f"dist.start {token} {what}", where=node.source.line)
        tokens.add(token)


def _check_local(name: str, text: str, type: TensorType, mesh: Mapping[str, int]) -> None:
    if not text:
        raise VerifyError(f"{name} has no layout")
    local = Layout.parse(text).local_shape(mesh)
    if local != type.shape:
        raise VerifyError(f"{name}: {text} is {local} on a rank, have {type.shape}")


def _check_successor(argument: Argument, type: TensorType, layout: str) -> None:
    if (type, layout) != (argument.type, argument.layout):
        have, need = f"{type.dtype} of {layout}", f"{argument.type.dtype} of {argument.layout}"
        raise VerifyError(f"{argument.name} is replaced by a {have}, it is a {need}")
