"""Every op carries the user's line, its phase and its forward op, from the capture's marks to the lowered graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from programs import collective, traced
from samite.ir.build import rewrite
from samite.ir.graph import Source
from samite.ir.importer import import_graph
from samite.ir.module import Module
from samite.lowering import graph_to_fx
from samite.mesh import Mesh

MESH = Mesh(("dp",), (2,))


def run(x: Tensor) -> tuple[Tensor, ...]:
    first, second = x.split(1)
    return collective.all_reduce(first.exp(), "dp", "sum"), second + torch.tensor([1.0])


def marked(**marks: Any) -> Module:
    """`run`, every op with these marks of the frontend."""
    graph = traced(run, torch.zeros(2)).graph
    for node in graph.nodes:
        if marks and node.op == "call_function":
            node.meta["custom"] = marks
    return import_graph(graph, mesh=MESH)


@pytest.mark.parametrize(
    "marks, source",
    [
        ({"line": "train.py:12", "phase": "backward", "op": 7}, Source("train.py:12", "backward", 7)),
        ({"line": "train.py:12", "phase": "update"}, Source("train.py:12", "update", -1)),
        ({"line": "train.py:12"}, Source("train.py:12")),
        ({"line": "a b:c/train.py:12", "phase": "forward", "op": 0}, Source("a b:c/train.py:12", "forward", 0)),
        ({"phase": "forward", "op": 3}, Source("", "forward", 3)),
        ({"line": "<string>", "phase": "forward", "op": 3}, Source("", "forward", 3)),
        ({}, Source()),
    ],
)
def test_marks_become_locations(marks: dict[str, Any], source: Source) -> None:
    module = marked(**marks)
    copy = rewrite(module, lambda graph, build: build.inline_all(graph))
    for again in (module, copy, Module.parse(copy.text()), Module.parse(copy.bytecode())):
        assert {node.source for node in again.graph.nodes} == {source}
    lowered = graph_to_fx(copy.graph, MESH)
    found = {node.meta["source"] for node in lowered.graph.nodes if node.op == "call_function"}
    assert found == {source}


def test_text_with_and_without_locations() -> None:
    module = marked(line="train.py:12", phase="backward", op=7)
    assert 'loc("backward:7"(' in module.text()
    assert '"train.py":12:0' in module.text()
    assert "loc(" not in module.text(locations=False)
    assert str(module) == module.text(locations=False)


def test_what_a_fragment_makes_takes_the_line_of_what_it_serves() -> None:
    module = marked(line="train.py:12", phase="backward", op=7)
    fragment = import_graph(traced(lambda x: (x.relu().neg(),), torch.zeros(2)).graph).graph
    location = module.graph.nodes[0].location
    made = rewrite(module, lambda graph, build: list(build.inline(fragment, build.arguments, location)))
    assert {node.source for node in made.graph.nodes} == {Source("train.py:12", "backward", 7)}
