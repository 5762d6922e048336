"""The whole pipeline on random programs with random placements: every rank's part is that of the one-device result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layout_simulator import meshes
from lockstep_graphs import run_graph
from programs import traced
from samite.errors import LayoutError
from samite.ir.importer import import_graph
from samite.layout import Layout
from samite.mesh import Mesh
from samite.passes.pipeline import default_passes, run_passes
from samite.placement import Shard
from samite.runtime.sharding import assemble, lay

Instruction = tuple[str, int, int]
"""An op, and two numbers that choose its operands."""


def pick(values: list[Tensor], at: int, test: Callable[[Tensor], bool]) -> Tensor | None:
    fitting = [v for v in values if test(v)]
    return fitting[at % len(fitting)] if fitting else None


def step(values: list[Tensor], instruction: Instruction) -> list[Tensor]:
    """What an instruction gives, from matrices; nothing where no operand fits."""
    op, i, j = instruction
    x = values[i % len(values)]
    rows, columns = x.shape
    if op == "mm":
        y = pick(values, j, lambda v: v.shape[0] == columns)
        return [] if y is None else [x @ y]
    if op in ("add", "mul", "where"):
        y = pick(values, j, lambda v: v.shape in (x.shape, (1, columns), (rows, 1)))
        assert y is not None
        return [x + y if op == "add" else x * y if op == "mul" else torch.where(x > 0, x, y)]
    if op == "cat":
        y = pick(values, j, lambda v: v.shape[1] == columns and v.shape[0] + rows <= 9)
        return [] if y is None else [torch.cat([x, y])]
    if op == "split":
        return list(x.split(max(rows // 2, 1)))[:3]
    if op == "slice":
        return [x[j % rows :, : max(columns - 1, 1)]]
    return [
        {
            "tanh": lambda: torch.tanh(x),
            "scale": lambda: x / 2,
            "t": lambda: x.t(),
            "sum": lambda: x.sum(j % 2, keepdim=True),
            "mean": lambda: x.mean(j % 2, keepdim=True),
            "max": lambda: x.amax(j % 2, keepdim=True),
            "softmax": lambda: torch.softmax(x, j % 2),
            "norm": lambda: torch.nn.functional.layer_norm(x, (columns,)),
            "view": lambda: x.reshape(columns, rows),
            "flat": lambda: x.reshape(1, -1) if rows * columns <= 12 else x,
            "embed": lambda: torch.nn.functional.embedding(torch.arange(j % 5) % rows, x) if j % 5 else x,
        }[op]()
    ]


OPS = ["mm", "add", "mul", "where", "cat", "split", "slice", "tanh", "scale"]
OPS += ["t", "sum", "mean", "max", "softmax", "norm", "view", "flat", "embed"]


def program(instructions: list[Instruction]) -> Callable[..., tuple[Tensor, ...]]:
    """The last values, a scalar that depends on nearly all, and a successor of the first argument."""

    def run(*arguments: Tensor) -> tuple[Tensor, ...]:
        values = list(arguments)
        for instruction in instructions:
            values += step(values, instruction)
        return arguments[0] * 2 - 1, torch.stack([v.sum() for v in values]).sum(), *values[-3:]

    return run


@st.composite
def placements(draw: st.DrawFn, mesh: Mesh, count: int) -> dict[str, dict[str, Any]]:
    place = st.sampled_from([None, Shard(0), Shard(1)])
    drawn = {f"x{i}": {axis: p for axis in mesh if (p := draw(place))} for i in range(count)}
    return {name: placed for name, placed in drawn.items() if placed}


@settings(max_examples=60)
@given(
    st.data(),
    meshes(ranks=6),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=10),
)
def test_any_program(
    data: st.DataObject, mesh: Mesh, shapes: list[tuple[int, int]], instructions: list[Instruction]
) -> None:
    run = program(instructions)
    arguments = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    want = run(*arguments)
    names = [(f"x{i}", "") for i in range(len(arguments))]
    module = import_graph(traced(run, *arguments).graph, names, [0] + [-1] * (len(want) - 1), mesh)
    wanted = data.draw(placements(mesh, len(arguments)))
    module, _ = run_passes(module, default_passes(wanted, {}, 200))
    graph = module.graph
    columns = [
        [lay(x, Layout.parse(a.layout), mesh, rank, poisoned=True) for rank in range(mesh.size)]
        for x, a in zip(arguments, graph.arguments, strict=True)
    ]
    outputs = run_graph(graph, mesh, list(zip(*columns, strict=True)))
    for i, (text, value) in enumerate(zip(graph.return_layouts, want, strict=True)):
        locals_ = [results[i].contiguous() for results in outputs]
        torch.testing.assert_close(assemble(locals_, Layout.parse(text), mesh, check=True), value)


def test_what_only_some_ranks_hold_is_refused() -> None:
    mesh = Mesh(("pp", "dp"), (2, 2))
    module = import_graph(traced(torch.relu, torch.ones(4)).graph, [("x0", "")], [-1], mesh)
    with pytest.raises(LayoutError, match=r"a program places a value laid out as \[4:dp\] at pp=1"):
        run_passes(module, default_passes({}, {"x0": Layout.parse("[4:dp] at pp=1")}, 200))
