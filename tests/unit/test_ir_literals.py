"""Constant tensors: from a captured function through MLIR text and back to torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode

from samite.errors import CaptureError
from samite.ir.build import rewrite
from samite.ir.importer import import_graph
from samite.ir.module import Module
from samite.lowering import graph_to_fx

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


def through_the_ir(constant: Tensor) -> Tensor:
    graph = fx.Graph()
    with FakeTensorMode() as mode:
        literal = graph.get_attr("constant")
        copy = graph.call_function(torch.ops.aten.clone.default, (literal,))
        literal.meta["val"] = copy.meta["val"] = mode.from_tensor(constant)
    graph.output((copy,))
    module = import_graph(fx.GraphModule({"constant": constant}, graph).graph)
    module = rewrite(Module.parse(module.text()), lambda graph, build: build.inline_all(graph))
    module = Module.parse(module.bytecode())
    module.verify()
    return graph_to_fx(module.graph, {})()[0]


def assert_same(x: Tensor, y: Tensor) -> None:
    """Down to the sign of zero. Which nan it is may be lost."""
    assert (x.dtype, x.shape) == (y.dtype, y.shape)
    torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(x.signbit() & ~x.isnan(), y.signbit() & ~y.isnan())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "values", [3, [3], [1, 1, 1], [0, 1, 2], [[1, 1], [1, 1]], [[0, 1, 2], [3, 4, 5]], [[]]], ids=str
)
def test_every_dtype(dtype: str, values: Any) -> None:
    constant = torch.tensor(values).to(getattr(torch, dtype))
    assert_same(through_the_ir(constant), constant)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    "values", [[float("nan"), float("inf"), -float("inf")], [0.0, -0.0], [-0.0, -0.0], [1 / 3, 1e-7]]
)
def test_floats_that_text_could_lose(dtype: str, values: list[float]) -> None:
    constant = torch.tensor(values, dtype=getattr(torch, dtype))
    assert_same(through_the_ir(constant), constant)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_floats(dtype: str) -> None:
    constant = torch.tensor([1.5, -0.0, 3.0]).to(getattr(torch, dtype))
    assert torch.equal(through_the_ir(constant).view(torch.uint8), constant.view(torch.uint8))


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
def test_large_integers(value: int) -> None:
    constant = torch.tensor([value, 0])
    assert_same(through_the_ir(constant), constant)


def test_a_transposed_constant() -> None:
    constant = torch.arange(6).reshape(2, 3).t()
    assert through_the_ir(constant).tolist() == constant.tolist()


def test_what_the_ir_has_no_type_for_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"a constant tensor of torch\.complex64"):
        through_the_ir(torch.tensor([1j, 2.0]))
    with pytest.raises(CaptureError, match=r"no type for tensors of torch\.uint16"):
        through_the_ir(torch.tensor([1, 2], dtype=torch.uint16))
