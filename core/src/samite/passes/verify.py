"""verify: what every local module promises to backends."""

from __future__ import annotations

from samite.errors import InputError, VerifyError
from samite.ir.module import Module
from samite.layout import Layout

__all__ = ["Verify"]

_GLOBAL = ("dist.reshard", "dist.constrain")
_PRODUCTS = frozenset(f"aten.{op}" for op in ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "convolution"))


class Verify:
    """Raises VerifyError if MLIR's invariants are broken, if an op of the global program is left, or if an argument is
    not what its layout gives a rank."""

    name = "verify"

    def run(self, module: Module) -> Module:
        module.verify()
        mesh = module.mesh
        graph = module.graph
        for argument in graph.arguments:
            local = Layout.parse(argument.layout).local_shape(mesh)
            if local != argument.type.shape:
                raise VerifyError(
                    f"{argument.name}: {argument.layout} is {local} on a rank, have {argument.type.shape}"
                )
        for node in graph.nodes:
            if node.op.name in _GLOBAL:
                raise VerifyError(f"{node.op.name} is left after partition", where=node.source.line)
            if node.op.name in _PRODUCTS and len(dtypes := {t.dtype for t in node.op.operands}) > 1:
                # Fake kernels let this pass; the real ones would fail in the middle of a step.
                raise InputError(
                    f"{node.op}: operands of {' and '.join(sorted(dtypes))}",
                    where=node.source.line,
                    help="cast one of them: x.to(weight.dtype)",
                )
        for value, alias in zip(graph.returns, graph.aliases, strict=True):
            if alias >= 0 and graph.types[value] != graph.arguments[alias].type:
                name = graph.arguments[alias].name
                raise VerifyError(f"{name} is replaced by {graph.types[value]}, have {graph.arguments[alias].type}")
        return module
