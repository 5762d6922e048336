"""Whether the backend of a mesh can run a program, asked before anything is sent to it."""

from __future__ import annotations

from samite.errors import UnsupportedOp
from samite.hal.driver import OpSignature
from samite.ir.graph import Graph, Op
from samite.ir.regions import all_nodes
from samite.mesh import Mesh
from samite.plugins import driver

__all__ = ["check_support"]


def check_support(graph: Graph, mesh: Mesh) -> None:
    """Raise UnsupportedOp for the first op that the mesh's backend declines, with its reason and the user's line.

    A mesh has one kind of device, so there is nowhere else to run it.
    """
    backend = mesh.backends[0]
    supports = driver(backend).supports
    asked: set[Op] = set()
    for node in all_nodes(graph):
        if node.op in asked or node.op.name.startswith(("dist.", "vtensor.")):
            continue
        asked.add(node.op)
        types = node.op.operands
        answer = supports(
            OpSignature(f"torch.{node.op.name}", tuple(t.dtype for t in types), tuple(t.shape for t in types))
        )
        if not answer:
            raise UnsupportedOp(
                f"{node.op}: the {backend} backend declines it: {answer.reason}",
                where=node.source.line,
                help="write the line with other ops, or run it on another backend",
            )
