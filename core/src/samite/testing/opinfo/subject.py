"""A call through Samite: captured once, then placed, partitioned and run on simulated ranks at each placement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from samite.errors import VerifyError
from samite.frontend import Capture, capture
from samite.ir.importer import import_graph
from samite.ir.module import Module
from samite.layout import Layout, plan
from samite.lowering import graph_to_fx
from samite.mesh import Mesh
from samite.passes.pipeline import default_passes, run_passes
from samite.runtime.interpreter import generate, run_lockstep
from samite.runtime.sharding import assemble, lay
from samite.testing.opinfo.calls import OpCall
from samite.testing.opinfo.outcomes import difference
from samite.testing.opinfo.placements import Placed

__all__ = ["SEED", "Subject", "Tried"]

SEED = 7
"""Of the programs that draw random numbers."""
BUCKET_BYTES = 1 << 20

_GATHERS = ("all_gather", "all_to_all")


@dataclass(frozen=True)
class Tried:
    """`problem` is where the results are wrong, "" if nowhere; `gathers` whether a value was gathered or moved on the
    way, other than by the exchange that an op's own rule makes."""

    problem: str
    gathers: bool


class Subject:
    """The captured call. Raises what capture and import raise."""

    def __init__(self, call: OpCall) -> None:
        self.call = call
        self.capture: Capture = capture(call.fn, ([x.clone() for x in call.tensors],))
        self._modules: dict[Mesh, Module] = {}
        alone = run_passes(self._module(Mesh(("a",), (1,))), default_passes({}, {}, BUCKET_BYTES)[:1])[0]
        self.ops = tuple(dict.fromkeys(node.op.name for node in alone.graph.nodes))
        """The names of the ops that the call becomes, in order."""

    @property
    def seed(self) -> int | None:
        """The seed that the program draws from; None if it draws nothing."""
        return SEED if any(a.kind == "rng" for a in self.capture.arguments) else None

    def run(self, placed: Placed, mesh: Mesh, wanted: Any, after: list[torch.Tensor]) -> Tried:
        """Compare with what plain PyTorch gives, `wanted`, and leaves in the arguments, `after`. Raises SamiteError."""
        passes = default_passes({f"given.{i}": axes for i, axes in placed.items()}, {}, BUCKET_BYTES)
        placing = next(i for i, p in enumerate(passes) if p.name == "place") + 1
        module, _ = run_passes(self._module(mesh), passes[:placing])
        gathers = _gathers(module)
        module, _ = run_passes(module, passes[placing:])
        graph = module.graph
        code = generate(graph_to_fx(graph, mesh), "call")
        mains = [code.bind(mesh, rank) for rank in range(mesh.size)]
        columns: list[list[torch.Tensor]] = []
        for spec, argument in zip(self.capture.arguments, graph.arguments, strict=True):
            value = torch.tensor(SEED) if spec.kind == "rng" else self.call.tensors[_number(spec.name)]
            layout = Layout.parse(argument.layout)
            columns.append([lay(value.clone(), layout, mesh, rank, poisoned=True) for rank in range(mesh.size)])
        with torch.no_grad():
            outputs = run_lockstep(mains, [[c[rank] for c in columns] for rank in range(mesh.size)], mesh, code)
        try:
            results = [
                assemble([r[i].contiguous() for r in outputs], Layout.parse(text), mesh, check=self.call.defined)
                for i, text in enumerate(graph.return_layouts)
            ]
        except VerifyError as error:  # replicas differ
            return Tried(error.what, gathers)
        return Tried(self._difference(results, wanted, after), gathers)

    def _difference(self, results: list[torch.Tensor], wanted: Any, after: list[torch.Tensor]) -> str:
        outputs = [r for r, spec in zip(results, self.capture.results, strict=True) if spec.kind == "output"]
        problem = difference(self.capture.rebuild(outputs), wanted, values=self.call.defined)
        written = {
            spec.argument: r for r, spec in zip(results, self.capture.results, strict=True) if spec.argument >= 0
        }
        for index, made in written.items():
            name = self.capture.arguments[index].name
            gap = difference(made, after[_number(name)], values=self.call.defined)
            problem = problem or (gap and f"{name}: {gap}")
        return problem

    def _module(self, mesh: Mesh) -> Module:
        if mesh not in self._modules:
            self._modules[mesh] = import_graph(
                self.capture.graph.graph,
                arguments=[(a.name, a.owner) for a in self.capture.arguments],
                aliases=[r.argument for r in self.capture.results],
                mesh=mesh,
            )
        return self._modules[mesh]


def _number(name: str) -> int:
    return int(name.split(".")[1])


def _gathers(module: Module) -> bool:
    """Whether a placed module has a reshard that gathers a value or exchanges its shards."""
    for node in module.graph.nodes:
        if node.op.name == "dist.reshard":
            src, dst = (Layout.parse(node.op.literals[key]) for key in ("src", "dst"))
            if any(step.verb in _GATHERS for step in plan(src, dst, module.mesh).steps):
                return True
    return False
