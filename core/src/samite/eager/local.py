"""What each rank does for a placed program, as statements of Python: the same for all ranks, and made once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx

from samite.eager.calls import facts
from samite.eager.kernels import kernel
from samite.eager.spec import Home
from samite.hal.driver import Communicator
from samite.ir.graph import Graph, overload
from samite.lowering.fx import graph_to_fx
from samite.mesh import Mesh
from samite.runtime.codegen import Code, generate
from samite.runtime.writer import Collective

if TYPE_CHECKING:
    from samite.ir.module import Module

__all__ = ["LocalProgram", "RankHome"]


class RankHome(Home, Protocol):
    """Where this process is a rank."""

    mesh: Mesh
    rank: int
    communicator: Communicator | None


_YIELD = re.compile(r"= yield (\w+), (\w+)")


@dataclass(frozen=True)
class LocalProgram:
    """`statements` compute `values` from arg0, arg1, ..., which they let go of; collectives are calls. `views` tells of
    each value whether it is a view of an argument, or an argument. `nodes` is the function that they come from."""

    code: Code
    nodes: Graph
    statements: tuple[str, ...]
    values: tuple[str, ...]
    views: tuple[bool, ...]

    @classmethod
    def of(cls, module: Module, name: str) -> LocalProgram:
        """Of a placed module."""
        from samite.passes.bucket_collectives import BucketCollectives
        from samite.passes.fuse_collectives import FuseCollectives
        from samite.passes.partition import Partition

        for step in (Partition(), FuseCollectives(), BucketCollectives()):
            module = step.run(module)
        return cls.of_graph(module.graph, module.mesh, name)

    @classmethod
    def of_graph(cls, graph: Graph, mesh: Mapping[str, int], name: str) -> LocalProgram:
        """Of a function of local types."""
        local = graph_to_fx(graph, mesh)
        code = generate(local, f"eager {name}")
        lines = [line.strip() for line in code.source.splitlines()]
        end = next(i for i, line in enumerate(lines) if line.startswith("return ("))
        named = [word.strip() for word in lines[end].removeprefix("return (").removesuffix(")").split(",")]
        values = tuple(filter(None, named))
        statements = tuple(_YIELD.sub(r"= \1(\2)", line) for line in lines[2:end])
        looking = _views_of_arguments(local.graph)
        return cls(code, graph, statements, values, tuple(value in looking for value in values))

    @property
    def regroups(self) -> bool:
        """Whether it views memory in a shape that the memory may not allow."""
        return any(op == "aten.reshape.default" for op in self.code.ops.values())

    def bind(
        self, lines: Sequence[str], home: RankHome, names: Mapping[str, Any], *, copying: bool = True
    ) -> Callable[..., Any]:
        """The function `main` that `lines` define around the statements, on one rank. Unless it may be `copying`, a
        regrouping that memory does not allow raises RuntimeError."""
        constants = {
            name: _call(value, home) if isinstance(value, Collective) else value
            for name, value in self.code.constants.items()
        }
        source = "".join(f"    {line}\n" if index else f"{line}\n" for index, line in enumerate(lines))
        main: Any = replace(self.code, source=source, constants=constants).bind(home.mesh, home.rank, **names)
        for name, op in self.code.ops.items():
            found = overload(op)
            if op == "aten.reshape.default" and not copying:
                found = torch.ops.aten.view.default
            main.__globals__[name] = kernel(found)
        return main


def _views_of_arguments(graph: fx.Graph) -> set[str]:
    found: set[str] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or (
            node.op == "call_function"
            and node.all_input_nodes
            and node.all_input_nodes[0].name in found
            and _gives_views(node.target)
        ):
            found.add(node.name)
    return found


def _gives_views(target: Any) -> bool:
    if getattr(target, "__name__", "") == "getitem":
        return True
    schema = getattr(target, "_schema", None)
    return schema is not None and (facts(target).views or schema.name == "aten::reshape")


def _call(site: Collective, home: RankHome) -> Callable[[torch.Tensor], torch.Tensor]:
    """The communicator is asked for at each call: a session that starts anew has another one."""
    verb, axes, arguments = site.verb, site.axes, site.arguments
    if home.communicator is None:  # the only rank
        return lambda x: x
    return lambda x: getattr(home.communicator, verb)(x, axes, *arguments)
