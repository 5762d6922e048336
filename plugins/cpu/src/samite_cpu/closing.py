"""Graphs of programs with everything that they read or write as inputs.

What differs between ranks (`axis_index`, `valid_length`), literals, and the memory that new state goes to all become
inputs. So what is compiled serves every rank, and new state is written by the kernel that computes it. Nothing runs
beside a collective here: one that is started is waited for at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from samite.hal.program import Program
from samite.ir.collectives import split_axes
from samite.ir.regions import call_of, is_control_flow
from samite.layout import Factor
from samite_cpu.executable import Interface

__all__ = ["Closed", "Length", "close"]


@dataclass(frozen=True)
class Length:
    """The valid length of a rank's shard of `size` over `axes`; of a program of many sizes the size number `column`."""

    axes: tuple[str, ...]
    size: int = 0
    column: int = -1

    def factor(self, sizes: tuple[int, ...]) -> Factor:
        return Factor(self.size if self.column < 0 else sizes[self.column], self.axes)


@dataclass(frozen=True)
class Closed:
    """What a compiled graph takes after the program's own arguments (and sizes, if it is one of many), in this order:
    this rank's index along each of `places`, the valid length of its shard of each of `lengths`, `literals`, and where
    the next value of each state of `replaced` goes. It gives the other results."""

    places: tuple[tuple[str, ...], ...]
    lengths: tuple[Length, ...]
    literals: tuple[torch.Tensor, ...]
    replaced: tuple[int, ...]


def close(module: fx.GraphModule, program: Program) -> tuple[fx.GraphModule, Closed]:
    """A program's graph with everything that it reads or writes as inputs, and how to give them."""
    graph = module.graph
    at = next(node for node in graph.nodes if node.op != "placeholder")
    _unite_starts(graph)
    _expand_shards(graph)
    _close_regions(module)
    places, lengths = _index_inputs(graph, at), _length_inputs(graph, at)
    literals: list[torch.Tensor] = []
    for node in graph.find_nodes(op="get_attr"):
        if not _asks(module, node):
            continue
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


def _expand_shards(graph: fx.Graph) -> None:
    """Writes `shard` as a selection by this rank's index."""
    ops, aten = torch.ops.samite, torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=ops.shard.default):
        x, axes, dim, parts = node.args
        with graph.inserting_before(node):
            index = graph.call_function(ops.axis_index.default, (axes,))
            index = graph.call_function(aten.reshape.default, (index, [1]))
            cut = graph.call_function(aten.unflatten.int, (x, dim, [parts, -1]))
            part = graph.call_function(aten.index_select.default, (cut, dim, index))
            _replace(node, graph.call_function(aten.squeeze.dim, (part, dim)))


def _index_inputs(graph: fx.Graph, at: fx.Node) -> list[tuple[str, ...]]:
    """Replaces what asks for the rank by one input for each set of axes; gives these."""
    inputs: dict[tuple[str, ...], fx.Node] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.samite.axis_index.default):
        key = split_axes(node.args[0])
        if key not in inputs:
            inputs[key] = _placeholder(graph, at, f"index_{'_'.join(key)}")
        _replace(node, inputs[key])
    return list(inputs)


def _length_inputs(graph: fx.Graph, at: fx.Node) -> list[Length]:
    """Replaces what asks for the valid length of a shard by an input for each; gives these."""
    inputs: dict[Length, fx.Node] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.samite.valid_length.default):
        axes, size, _ = node.args
        names = split_axes(axes)
        length = Length(names, size) if isinstance(size, int) else Length(names, column=size.meta["size"])
        if length not in inputs:
            inputs[length] = _placeholder(graph, at, f"valid_{size}_{'_'.join(names)}")
        _replace(node, inputs[length])
    return list(inputs)


def _unite_starts(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=torch.ops.samite.wait.default):
        _replace(node, node.args[0])


def _close_regions(module: fx.GraphModule) -> None:
    """What regions ask of the rank, and their literals, become operands of theirs; the function around them asks."""
    graph = module.graph
    for node in [node for node in graph.nodes if is_control_flow(node.target)]:
        functions, made = call_of(node).functions, dict[Any, fx.Node]()
        for function in functions:
            _unite_starts(function.graph)
            _expand_shards(function.graph)
            _close_regions(function)
            _copy_results(function.graph)
        for inner in [(f, n) for f in functions for n in f.graph.nodes if _asks(f, n)]:
            key = _key(*inner)
            if key not in made:
                made[key] = _asked_outside(module, *inner, node)
        for function in functions:
            at = next(n for n in function.graph.nodes if n.op != "placeholder")
            given = {key: _placeholder(function.graph, at, f"given_{i}") for i, key in enumerate(made)}
            for asked in [n for n in function.graph.nodes if _asks(function, n)]:
                _replace(asked, given[_key(function, asked)])
            function.recompile()
        *others, operands = node.args
        assert isinstance(operands, (list, tuple))
        node.args = (*others, type(operands)((*operands, *made.values())))


def _key(function: fx.GraphModule, asked: fx.Node) -> tuple[Any, ...]:
    """What is one operand of all regions: an op of these arguments, or a literal of this function."""
    return (asked.target, *asked.args) if asked.op == "call_function" else (function, asked.target)


def _copy_results(graph: fx.Graph) -> None:
    """What a region gives is memory of its own, as torch demands: not an input, a view, or one value twice."""
    output = graph.output_node()
    results: Any = output.args[0]
    with graph.inserting_before(output):
        output.args = (tuple(graph.call_function(torch.ops.aten.clone.default, (value,)) for value in results),)


def _asks(function: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node's value depends on the rank, or is a literal."""
    if node.op == "get_attr":
        return isinstance(getattr(function, str(node.target)), torch.Tensor)
    return node.target in (torch.ops.samite.axis_index.default, torch.ops.samite.valid_length.default)


def _asked_outside(module: fx.GraphModule, function: fx.GraphModule, asked: fx.Node, before: fx.Node) -> fx.Node:
    graph = module.graph
    with graph.inserting_before(before):
        if asked.op == "call_function":
            return graph.call_function(asked.target, asked.args)  # pyright: ignore[reportArgumentType]
        name = f"inner_literal{sum(1 for _ in module.buffers(recurse=False))}"
        module.register_buffer(name, function.get_buffer(str(asked.target)))
        return graph.get_attr(name)


def _placeholder(graph: fx.Graph, at: fx.Node, name: str) -> fx.Node:
    with graph.inserting_before(at):
        return graph.placeholder(name)


def _replace(node: fx.Node, by: fx.Node) -> None:
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)
