"""Programs compiled by Inductor: fused C++ kernels around ATen's matmuls, and around the collectives.

The graph is closed first: what differs between ranks (`axis_index`, `valid_length`), literals, and the memory that new
state goes to all become inputs. So one artifact serves every rank, and new state is written by the kernel that computes
it. Nothing runs beside a collective here: one that is started is waited for at once.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import torch
from torch import fx

from samite.errors import UnsupportedOp
from samite.hal.driver import Bound, Communicator, Event, Executable, StateSlot
from samite.hal.program import Program
from samite.ir.adam import adam, adam_reference, amsgrad
from samite.ir.collectives import split_axes, using
from samite.ir.sgd import sgd, sgd_momentum, sgd_momentum_reference, sgd_reference
from samite.layout import Factor
from samite.lowering import to_fx
from samite.mesh import Mesh
from samite_cpu.executable import Interface, Ready

__all__ = ["Closed", "InductorExecutable", "close"]


@dataclass(frozen=True)
class Closed:
    """What a compiled graph takes after the program's own arguments, in this order: this rank's index along each of
    `places`, the valid length of its shard of each of `lengths`, `literals`, and where the next value of each state of
    `replaced` goes. It gives the other results."""

    places: tuple[tuple[str, ...], ...]
    lengths: tuple[Factor, ...]
    literals: tuple[torch.Tensor, ...]
    replaced: tuple[int, ...]


def close(module: fx.GraphModule, program: Program) -> tuple[fx.GraphModule, Closed]:
    """A program's graph with everything that it reads or writes as inputs, and how to give them."""
    graph = module.graph
    at = next(node for node in graph.nodes if node.op != "placeholder")
    _unite_starts(graph)
    places, lengths = _index_inputs(graph, at), _length_inputs(graph, at)
    literals: list[torch.Tensor] = []
    for node in graph.find_nodes(op="get_attr"):
        literals.append(module.get_buffer(str(node.target)))
        _replace(node, _placeholder(graph, at, f"literal_{len(literals)}"))
    output = graph.output_node()
    interface, results = Interface.of(program), list(output.args[0])  # pyright: ignore[reportArgumentType]
    plain = [value for value, index in zip(results, interface.replaced, strict=True) if index < 0]
    for value, index in zip(results, interface.replaced, strict=True):
        if index >= 0:
            memory = _placeholder(graph, at, f"next_{index}")
            with graph.inserting_before(output):
                graph.call_function(torch.ops.aten.copy_.default, (memory, value))
    output.args = (tuple(plain),)
    graph.lint()
    replaced = tuple(index for index in interface.replaced if index >= 0)
    return fx.GraphModule(module, graph), Closed(tuple(places), tuple(lengths), tuple(literals), replaced)


def _index_inputs(graph: fx.Graph, at: fx.Node) -> list[tuple[str, ...]]:
    """Replaces what asks for the rank by one input for each set of axes; gives these."""
    inputs: dict[tuple[str, ...], fx.Node] = {}
    for node in list(graph.nodes):
        if node.target not in (torch.ops.samite.axis_index.default, torch.ops.samite.shard.default):
            continue
        *operand, axes = node.args[: 1 + (node.target is torch.ops.samite.shard.default)]
        key = split_axes(axes)
        if key not in inputs:
            inputs[key] = _placeholder(graph, at, f"index_{'_'.join(key)}")
        if not operand:
            _replace(node, inputs[key])
            continue
        dim, parts = node.args[2:]
        (shape, _), *_ = node.meta["types"]
        cut = [*shape[:dim], parts, *shape[dim:]]
        with graph.inserting_before(node):
            index = graph.call_function(torch.ops.aten.reshape.default, (inputs[key], [1]))
            whole = graph.call_function(torch.ops.aten.reshape.default, (operand[0], cut))
            part = graph.call_function(torch.ops.aten.index_select.default, (whole, dim, index))
            _replace(node, graph.call_function(torch.ops.aten.reshape.default, (part, list(shape))))
    return list(inputs)


def _length_inputs(graph: fx.Graph, at: fx.Node) -> list[Factor]:
    """Replaces what asks for the valid length of a shard by an input for each factor; gives these."""
    inputs: dict[Factor, fx.Node] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.samite.valid_length.default):
        axes, size, _ = node.args
        factor = Factor(size, split_axes(axes))
        if factor not in inputs:
            inputs[factor] = _placeholder(graph, at, f"valid_{size}_{'_'.join(factor.axes)}")
        _replace(node, inputs[factor])
    return list(inputs)


def _unite_starts(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=torch.ops.samite.wait.default):
        _replace(node, node.args[0])


def _placeholder(graph: fx.Graph, at: fx.Node, name: str) -> fx.Node:
    with graph.inserting_before(at):
        return graph.placeholder(name)


def _replace(node: fx.Node, by: fx.Node) -> None:
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


@cache
def _know_updates() -> None:
    """Tell Inductor what optimizer updates are: it fuses their arithmetic, and writes new state where it belongs."""
    from torch._inductor.decomposition import register_decomposition

    register_decomposition([adam, amsgrad])(adam_reference)
    register_decomposition([sgd])(sgd_reference)
    register_decomposition([sgd_momentum])(sgd_momentum_reference)


class InductorExecutable(Executable):
    """An artifact of Inductor. It holds machine code, so it loads on the kind of CPU and version of torch it was made
    for; compiling again finds Inductor's own cache."""

    def __init__(self, artifact: bytes, closed: Closed, interface: Interface) -> None:
        self._artifact, self._closed, self._interface = artifact, closed, interface

    @classmethod
    def compile(cls, program: Program) -> InductorExecutable:
        import torch._inductor as inductor

        _know_updates()
        module, closed = close(to_fx(program), program)
        compiled = inductor.standalone_compile(module, _examples(program, closed), dynamic_shapes="from_example_inputs")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "artifact")
            try:
                compiled.save(path=path, format="binary")
            except RuntimeError as error:
                raise UnsupportedOp(
                    f'Inductor cannot keep what it made of "{program.name}": {error}', help='use mode="aten"'
                ) from error
            with open(path, "rb") as file:
                return cls(file.read(), closed, Interface.of(program))

    def save(self) -> bytes:
        return pickle.dumps(self)

    @cached_property
    def _call(self) -> Callable[..., Any]:
        from torch._inductor import CompiledArtifact

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "artifact")
            with open(path, "wb") as file:
                file.write(self._artifact)
            return CompiledArtifact.load(path=path, format="binary")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_call"}

    def bind(self, state: Sequence[StateSlot], communicator: Communicator | None, rank: int) -> Bound:
        endpoint = _Endpoint(communicator, self._interface.mesh, rank)
        indices = [torch.tensor(endpoint.axis_index(axes)) for axes in self._closed.places]
        at = self._interface.mesh.coordinates(rank)
        lengths = [torch.tensor(factor.span(self._interface.mesh, at)[1]) for factor in self._closed.lengths]
        fixed = [*indices, *lengths, *self._closed.literals]
        return _Bound(self._call, self._interface, self._closed.replaced, fixed, list(state), endpoint)


def _examples(program: Program, closed: Closed) -> list[Any]:
    arguments = [
        torch.zeros(argument.layout.local_shape(program.mesh), dtype=getattr(torch, argument.dtype))
        for argument in program.arguments
    ]
    state = [x for x, argument in zip(arguments, program.arguments, strict=True) if argument.kind == "state"]
    indices = [torch.tensor(0) for _ in (*closed.places, *closed.lengths)]
    return [*arguments, *indices, *closed.literals, *(torch.zeros_like(state[index]) for index in closed.replaced)]


class _Endpoint:
    """A communicator as compiled code calls it: a collective's result is never its operand, whose memory Inductor may
    use for something else."""

    def __init__(self, communicator: Communicator | None, mesh: Mesh, rank: int) -> None:
        self._communicator, self._mesh, self._rank = communicator, mesh, rank

    def axis_index(self, axes: Sequence[str]) -> int:
        return self._mesh.peers(self._rank, axes).index(self._rank)

    def all_reduce(self, x: torch.Tensor, axes: Sequence[str], reduce_type: str) -> torch.Tensor:
        return self._own("all_reduce", x, axes, reduce_type)

    def all_gather(self, x: torch.Tensor, axes: Sequence[str], dim: int) -> torch.Tensor:
        return self._own("all_gather", x, axes, dim)

    def reduce_scatter(self, x: torch.Tensor, axes: Sequence[str], dim: int, reduce_type: str) -> torch.Tensor:
        return self._own("reduce_scatter", x, axes, dim, reduce_type)

    def all_to_all(self, x: torch.Tensor, axes: Sequence[str], split_dim: int, concat_dim: int) -> torch.Tensor:
        return self._own("all_to_all", x, axes, split_dim, concat_dim)

    def permute(self, x: torch.Tensor, axes: Sequence[str], pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
        return self._own("permute", x, axes, pairs)

    def _own(self, verb: str, x: torch.Tensor, axes: Sequence[str], *arguments: Any) -> torch.Tensor:
        if prod(self._mesh[axis] for axis in axes) == 1:
            return x.clone()
        result = getattr(self._communicator, verb)(x, axes, *arguments)
        return result.clone() if result is x else result


@dataclass
class _Bound:
    call: Callable[..., Any]
    interface: Interface
    replaced: tuple[int, ...]
    fixed: list[torch.Tensor]
    slots: list[StateSlot]
    endpoint: _Endpoint

    def run(self, inputs: Sequence[torch.Tensor], wait: Sequence[Event] = ()) -> tuple[list[torch.Tensor], Event]:
        for event in wait:
            event.wait()
        following = [self._memory(index) for index in self.replaced]
        arguments = self.interface.arguments(self.slots, inputs)
        with torch.no_grad(), using(self.endpoint):
            results = self.call(*arguments, *self.fixed, *following)
        for index, memory in zip(self.replaced, following, strict=True):
            self.slots[index].value = memory
        return list(results), Ready()

    def close(self) -> None:
        self.slots.clear()

    def _memory(self, index: int) -> torch.Tensor:
        """Where the next value of a state goes: what its slot offers, else new memory."""
        spare = self.slots[index].spare()
        return torch.empty_like(self.slots[index].value) if spare is None else spare
