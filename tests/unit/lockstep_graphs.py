"""Running functions of the IR on all ranks of a mesh in this process, as workers run them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samite.ir.graph import Graph
from samite.lowering import graph_to_fx
from samite.mesh import Mesh
from samite.runtime.interpreter import generate, run_lockstep

__all__ = ["run_graph"]


def run_graph(graph: Graph, mesh: Mesh, inputs: Sequence[Sequence[torch.Tensor]]) -> list[tuple[torch.Tensor, ...]]:
    """The results of every rank of a local function; `inputs[rank]` are its arguments."""
    code = generate(graph_to_fx(graph, mesh), graph.name)
    with torch.no_grad():
        return run_lockstep([code.bind(mesh, rank) for rank in range(mesh.size)], inputs, mesh, code)
