"""Functions as plain data: what `scan` reads from a module, a `Builder` writes again, word for word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from programs import collective, traced
from samite.errors import UnsupportedOp, VerifyError
from samite.ir.build import Builder, rewrite
from samite.ir.context import TensorType
from samite.ir.graph import Argument, Constant, Graph, ListOf, Slot, overload
from samite.ir.importer import import_graph, trace
from samite.ir.module import Module
from samite.mesh import Mesh
from torch_functions import FUNCTIONS

MESH = Mesh(("dp", "tp"), (2, 2))


def imported(function: Callable[..., Any], *arguments: Tensor, **options: Any) -> Module:
    return import_graph(traced(lambda *xs: tuple(pytree.tree_leaves(function(*xs))), *arguments).graph, **options)


def copied(module: Module) -> Module:
    return rewrite(module, lambda graph, build: build.inline_all(graph))


def plain(graph: Graph) -> list[Any]:
    """All of a graph; ops are interned, so that equal ones are identical."""
    nodes = [(id(n.op), n.operands, n.results, n.source, n.layouts) for n in graph.nodes]
    return [graph.arguments, nodes, graph.returns, graph.aliases, graph.types, graph.return_layouts]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scan_and_write(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    module = imported(function, *arguments)
    module.verify()
    copy = copied(module)
    copy.verify()
    assert plain(copy.graph) == plain(module.graph)
    assert copied(copy).text() == copy.text()  # the importer writes a constant once a use, a Builder once
    for again in (Module.parse(copy.text()), Module.parse(copy.bytecode())):
        assert again.text() == copy.text()
        assert plain(again.graph) == plain(module.graph)


def test_collectives() -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        y = collective.all_gather(collective.all_reduce(x, "dp,tp", "max"), "tp", 1, 2)
        z = collective.reduce_scatter(y, "dp", 0, "sum", 2) + collective.shard(y, "dp", 0, 2)
        z = collective.permute(z, "dp", [0, 1, 1, 0])
        return collective.all_to_all(z, "tp", 0, 1, 2), collective.axis_index("tp")

    graph = copied(imported(run, torch.randn(8, 4), mesh=MESH)).graph
    assert {node.op.name: dict(node.op.literals) for node in graph.nodes if node.op.name.startswith("dist.")} == {
        "dist.all_reduce": {"algorithm": "auto", "axes": ("dp", "tp"), "chunk_bytes": 0, "reduce_type": "max"},
        "dist.all_gather": {"axes": ("tp",), "dim": 1},
        "dist.reduce_scatter": {"axes": ("dp",), "dim": 0, "reduce_type": "sum"},
        "dist.shard": {"axes": ("dp",), "dim": 0},
        "dist.all_to_all": {"axes": ("tp",), "concat_dim": 1, "split_dim": 0},
        "dist.permute": {"axes": ("dp",), "pairs": ((0, 1), (1, 0))},
        "dist.axis_index": {"axes": ("tp",)},
    }


def test_arguments_and_results_keep_their_attributes() -> None:
    module = imported(
        lambda w, m: (w - m, m), torch.randn(4), torch.randn(4), arguments=[("w", ""), ("w.m", "w")], aliases=[0, -1]
    )
    whole = TensorType((4,), "float32")
    assert module.graph.arguments == (Argument(whole, "w"), Argument(whole, "w.m", owner="w"))
    assert module.graph.aliases == (0, -1)
    placed = [a._replace(layout="[4:dp]") for a in module.graph.arguments]
    module = rewrite(module, lambda graph, build: build.inline_all(graph), placed, ["[4:dp]", "[4]"])
    again = Module.parse(module.text()).graph
    assert again.arguments == tuple(placed)
    assert (again.aliases, again.return_layouts) == ((0, -1), ("[4:dp]", "[4]"))


def test_ops_are_as_their_schemas_write_them() -> None:
    graph = imported(lambda x, i: x[:, i].clamp(min=0.5), torch.randn(2, 3), torch.tensor([0])).graph
    index, clamp = graph.nodes
    assert index.op.name == "aten.index.Tensor"
    assert index.op.form == (Slot(0), ListOf("!torch.list<optional<vtensor>>", (Constant.of(None), Slot(1))))
    assert index.op.operands == (TensorType((2, 3), "float32"), TensorType((1,), "int64"))
    assert (index.operands, index.results, clamp.operands) == ((0, 1), (2,), (2,))
    assert clamp.op.literals == {"min": 0.5, "max": None}
    assert graph.users() == [[0], [0], [1], [2]]


def test_equal_calls_share_an_op() -> None:
    nodes = imported(lambda x: (x.sum(0), (x + 1).sum(0), x.sum(1), x.double().sum(0)), torch.randn(3, 3)).graph.nodes
    sums = [node.op for node in nodes if node.op.name == "aten.sum.dim_IntList"]
    assert sums[0] is sums[1]
    assert len(set(sums)) == 3


LITERALS = [1, True, 1.0, 0, False, 0.0, -0.0, float("nan"), float("inf"), "1", None, 2**62, 1e-45]


@pytest.mark.parametrize("value", LITERALS, ids=repr)
def test_constants_are_told_apart(value: Any) -> None:
    """Python says 1 == True == 1.0, 0.0 == -0.0 and nan != nan; of literals it is the other way round."""
    same = [other for other in LITERALS if Constant.of(other) == Constant.of(value)]
    assert [repr(other) for other in same] == [repr(value)]
    assert hash(Constant.of(value)) == hash(Constant.of(type(value)(value) if value is not None else None))
    module = Module.empty()
    with Builder(module, "main", [Argument(TensorType((2,), "float32"))]) as build:
        form = (Slot(0), ListOf("!torch.list<any>", (Constant.of(value),)))
        made = build.torch("my.op", form, build.arguments, [TensorType((2,), "float32")])
        build.finish(made)
    [node] = Module.parse(module.text()).graph.nodes
    assert node.op.form == form


def test_a_list_may_be_unpacked_late() -> None:
    """Values are numbered in the order of the ops that make them, wherever an importer unpacks."""
    text = """
!x = !torch.vtensor<[4],f32>
!p = !torch.vtensor<[2],f32>
!list = !torch.list<vtensor>
func.func @main(%x: !x) -> (!p, !p, !x) {
  %two = torch.constant.int 2
  %zero = torch.constant.int 0
  %list = torch.aten.split.Tensor %x, %two, %zero : !x, !torch.int, !torch.int -> !list
  %y = torch.aten.relu %x : !x -> !x
  %parts:2 = torch.prim.ListUnpack %list : !list -> !p, !p
  return %parts#0, %parts#1, %y : !p, !p, !x
}"""
    graph = Module.parse(text).graph
    assert [node.op.name for node in graph.nodes] == ["aten.split.Tensor", "aten.relu"]
    assert [node.results for node in graph.nodes] == [(1, 2), (3,)]
    assert graph.returns == (1, 2, 3)
    assert plain(copied(Module.parse(text)).graph) == plain(graph)


def test_results_that_are_left_out() -> None:
    def run(grad: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor | None, ...]:
        mask = [False, True, False]
        return torch.ops.aten.convolution_backward(grad, x, w, None, [1], [0], [1], False, [0], 1, mask)

    graph = trace(run, [TensorType(shape, "float32") for shape in ((1, 2, 3), (1, 4, 3), (2, 4, 1))])
    assert [graph.types[r] for r in graph.returns] == [
        TensorType((), "none"),
        TensorType((2, 4, 1), "float32"),
        TensorType((), "none"),
    ]


def test_an_op_that_torch_lacks_is_named() -> None:
    with pytest.raises(UnsupportedOp, match=r"torch knows no op my\.op") as raised:
        overload("my.op")
    assert "worker_imports" in raised.value.help


@pytest.mark.parametrize(
    "body, error",
    [
        ("%i = torch.aten.size.int %x, %one : !t, !torch.int -> !torch.int\nreturn %x : !t", "of type !torch.int"),
        ("return %one : !torch.int", "of type !torch.int is returned"),
        (
            "%l = torch.aten.split.Tensor %x, %one, %one : !t, !torch.int, !torch.int -> !torch.list<vtensor>\n"
            "%y = torch.aten.cat %l, %one : !torch.list<vtensor>, !torch.int -> !t\nreturn %y : !t",
            "must be unpacked",
        ),
    ],
    ids=["a size", "an int", "a list that is passed on"],
)
def test_what_passes_do_not_understand_is_refused(body: str, error: str) -> None:
    result = body.rpartition(" : ")[2]
    function = f"func.func @main(%x: !t) -> {result} {{\n%one = torch.constant.int 1\n{body}\n}}"
    with pytest.raises(VerifyError, match=error):
        _ = Module.parse(f"!t = !torch.vtensor<[2],f32>\n{function}").graph


def test_a_module_needs_its_function() -> None:
    with pytest.raises(VerifyError, match="no function 'main'"):
        _ = Module.empty().graph
    with pytest.raises(VerifyError, match="does not parse"):
        Module.parse("func.func @main(")
