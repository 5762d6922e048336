"""From MLIR back to FX: the graph computes what the captured function does, op for op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx

from lockstep_graphs import run_graph
from programs import argument as declared
from programs import collective, program, traced
from samite.errors import UnsupportedOp, VerifyError
from samite.hal.program import Result
from samite.ir.context import TensorType
from samite.ir.importer import import_graph
from samite.ir.module import Module
from samite.layout import Layout
from samite.lowering import graph_to_fx, to_fx
from samite.mesh import Mesh
from torch_functions import FUNCTIONS


def lowered(function: Callable[..., Any], *arguments: Tensor) -> fx.GraphModule:
    """Through MLIR text."""
    module = import_graph(traced(lambda *xs: tuple(pytree.tree_leaves(function(*xs))), *arguments).graph)
    return graph_to_fx(Module.parse(module.text()).graph, {})


def assert_equal(got: Any, want: Any) -> None:
    torch.testing.assert_close(tuple(got), tuple(pytree.tree_leaves(want)), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    """dtypes, layouts and memory formats as keywords and positions, lists, optional arguments, several results."""
    function, arguments = FUNCTIONS[name]
    got = lowered(function, *arguments)(*arguments)
    assert_equal(got, function(*arguments))


def test_enums_are_torchs_objects() -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        y = x.to(torch.bfloat16)
        return torch.ones_like(y), x.clone(memory_format=torch.channels_last), x.sum(dtype=torch.float64)

    nodes = lowered(run, torch.randn(1, 2, 3, 3)).graph.find_nodes
    [cast] = nodes(op="call_function", target=torch.ops.aten._to_copy.default)
    assert cast.kwargs["dtype"] is torch.bfloat16
    [copy] = nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert copy.kwargs["memory_format"] is torch.channels_last
    [total] = nodes(op="call_function", target=torch.ops.aten.sum.default)
    assert total.kwargs["dtype"] is torch.float64


def test_nodes_know_their_types() -> None:
    graph = lowered(lambda x: (*x.max(1), *x.split(1)), torch.randn(2, 3)).graph
    x, largest, split = TensorType((2, 3), "float32"), TensorType((2,), "float32"), TensorType((1, 3), "float32")
    types = [node.meta["types"] for node in graph.nodes if node.op != "output"]
    index = TensorType((2,), "int64")
    assert types == [(x,), (largest, index), (largest,), (index,), (split, split), (split,), (split,)]


def test_a_view_of_what_cannot_be_viewed() -> None:
    """The IR has no strides: what was contiguous when it was traced may not be on a rank."""
    text = """
!x = !torch.vtensor<[2,3],f32>
!t = !torch.vtensor<[3,2],f32>
!v = !torch.vtensor<[6],f32>
func.func @main(%x: !x) -> !v {
  %six = torch.constant.int 6
  %shape = torch.prim.ListConstruct %six : (!torch.int) -> !torch.list<int>
  %t = torch.aten.t %x : !x -> !t
  %v = torch.aten.view %t, %shape : !t, !torch.list<int> -> !v
  return %v : !v
}"""
    x = torch.randn(2, 3)
    assert_equal(graph_to_fx(Module.parse(text).graph, {})(x), x.t().reshape(6))


Step = Callable[[Tensor, Tensor, int], Tensor]
STEPS: list[Step] = [
    lambda x, y, i: x + y[i % 4],
    lambda x, y, i: x * y.sum(i % 2, keepdim=True),
    lambda x, y, i: x @ y,
    lambda x, y, i: torch.where(x > i - 5, x, y),
    lambda x, y, i: torch.cat([x, y], i % 2)[:4, :4],
    lambda x, y, i: torch.stack(x.split(1 + i % 3, 0)[0].unbind(1), 1).sum(0, keepdim=True) + y,
    lambda x, y, i: x.reshape(2, 8).t().reshape(4, 4) - y,
    lambda x, y, i: x.to([torch.float16, torch.bfloat16, torch.float64][i % 3]).to(y.dtype) + y,
    lambda x, y, i: torch.softmax(x, i % 2) * torch.full((4, 4), i / 2),
    lambda x, y, i: x.roll(i, 0) + y.flip(1) * torch.tensor(i),
    lambda x, y, i: x.index_select(0, torch.arange(4) % (1 + i % 4)) + y[torch.tensor([0, 1, 2, i % 4])],
    lambda x, y, i: x.topk(2 + i % 2, 1)[0].sum(1, keepdim=True) + y.argmax(0),
    lambda x, y, i: x.clamp(-1.0, None if i % 2 else 1.0) + y.triu(i % 3),
]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 20), st.integers(0, 20), st.integers(0, 9))))
def test_random_graphs(choices: list[tuple[Step, int, int, int]]) -> None:
    def run(*arguments: Tensor) -> tuple[Tensor, ...]:
        values = list(arguments)
        for step, i, j, number in choices:
            values.append(step(values[i % len(values)], values[j % len(values)], number))
        return tuple(values)

    arguments = [torch.randn(4, 4), torch.randn(4, 4)]
    assert_equal(lowered(run, *arguments)(*arguments), run(*arguments))


def test_collectives_are_samites_ops() -> None:
    mesh = Mesh(("dp", "tp"), (2, 3))

    def run(x: Tensor) -> tuple[Tensor, ...]:
        y = collective.all_gather(collective.all_reduce(x, "dp", "max"), "tp,dp", 1, 6)
        z = collective.permute(collective.reduce_scatter(y, "tp", 1, "sum", 3), "dp", [1, 0])
        return collective.all_to_all(collective.shard(z, "dp", 1, 2), "tp", 0, 1, 3), collective.axis_index("dp,tp")

    graph = import_graph(traced(run, torch.zeros(3, 2)).graph, mesh=mesh).graph
    calls = {n.target._opname: n.args[1:] for n in graph_to_fx(graph, mesh).graph.nodes if n.op == "call_function"}
    assert calls.pop("axis_index") == ()
    assert calls == {
        "all_reduce": ("dp", "max", "auto", 0),
        "all_gather": ("tp,dp", 1, 6),
        "reduce_scatter": ("tp", 1, "sum", 3),
        "permute": ("dp", [1, 0]),
        "shard": ("dp", 1, 2),
        "all_to_all": ("tp", 0, 1, 3),
    }
    outputs = run_graph(graph, mesh, [[torch.full((3, 2), float(rank))] for rank in range(mesh.size)])
    assert [index.item() for _, index in outputs] == list(range(6))
    assert [result.shape for result, _ in outputs] == [(1, 6)] * 6


def test_a_program_is_lowered_from_its_text() -> None:
    mesh, whole = Mesh(("dp",), (2,)), Layout.replicated((3,))
    made = program(lambda x: (x * 2,), [declared("x", whole)], [Result("y", "float32", whole)], mesh)
    assert_equal(to_fx(made)(torch.ones(3)), (torch.full((3,), 2.0),))


def test_results_that_are_left_out_are_none() -> None:
    def run(grad: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor | None, ...]:
        mask = [False, True, False]
        return torch.ops.aten.convolution_backward(grad, x, w, None, [1], [0], [1], False, [0], 1, mask)

    arguments = torch.randn(1, 2, 3), torch.randn(1, 4, 3), torch.randn(2, 4, 1)
    got = graph_to_fx(import_graph(traced(run, *arguments).graph).graph, {})(*arguments)
    assert [g is None for g in got] == [True, False, True]
    assert_equal([got[1]], [run(*arguments)[1]])


def test_an_op_of_the_global_program_is_no_local_program() -> None:
    text = """
!x = !torch.vtensor<[4],f32>
func.func @main(%x: !x) -> !x {
  %y = "dist.reshard"(%x) {src = "[4]", dst = "[4]"} : (!x) -> !x
  return %y : !x
}"""
    with pytest.raises(VerifyError, match=r"dist\.reshard is of the global program"):
        graph_to_fx(Module.parse(text).graph, {})


def test_a_value_that_changes_its_kind_of_device_is_refused_with_its_line() -> None:
    text = """
#line = loc("forward:0"("serve.py":7:0))
!x = !torch.vtensor<[2],f32>
module attributes {dist.mesh = #dist.mesh<["pp"], [2], ["gpu_triton", "cpu"]>} {
  func.func @main(%x: !x) -> !x {
    %y = "dist.transfer"(%x) {source = "gpu_triton", target = "cpu"} : (!x) -> !x loc(#line)
    return %y : !x
  }
}
"""
    module = Module.parse(text)
    with pytest.raises(UnsupportedOp, match="goes from gpu_triton to cpu") as caught:
        graph_to_fx(module.graph, module.mesh)
    assert "serve.py:7" in str(caught.value)
