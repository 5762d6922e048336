"""normalise, executed: decompositions are the ops that they stand for, and everything else computes what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from programs import traced
from samite.ir.importer import import_graph
from samite.lowering import graph_to_fx
from samite.passes.normalise import DECOMPOSITIONS, Normalise
from torch_functions import FUNCTIONS

aten = torch.ops.aten


def check(function: Callable[..., Any], *arguments: Tensor, decomposed: bool = True) -> None:
    """The function after the pass, as torch has it: to the rounding of the dtype. Nothing that decomposes is left."""
    module = import_graph(traced(lambda *xs: tuple(pytree.tree_leaves(function(*xs))), *arguments).graph)
    assert decomposed == any(node.op.name in DECOMPOSITIONS for node in module.graph.nodes)
    made = Normalise().run(module)
    made.verify(after="normalise")
    assert not [node.op.name for node in made.graph.nodes if node.op.name in DECOMPOSITIONS]
    got, want = graph_to_fx(made.graph, {})(*arguments), pytree.tree_leaves(function(*arguments))
    torch.testing.assert_close(tuple(got), tuple(want), equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    module = import_graph(traced(lambda *xs: tuple(pytree.tree_leaves(function(*xs))), *arguments).graph)
    got = graph_to_fx(Normalise().run(module).graph, {})(*arguments)
    torch.testing.assert_close(tuple(got), tuple(pytree.tree_leaves(function(*arguments))), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "mean",
    [
        lambda x: x.mean(),
        lambda x: x.mean(0),
        lambda x: x.mean((-1, 0), keepdim=True),
        lambda x: x.mean([]),
        lambda x: x.mean(1, dtype=torch.float64),
        lambda x: x.mean(dtype=torch.float32),
        lambda x: x[0, 0].mean(0, keepdim=True),
    ],
)
def test_means(mean: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    check(mean, torch.randn(4, 3).to(dtype))


def test_a_mean_of_16_bits_overflows_no_sum() -> None:
    """Its terms add up to 80,000; float16 ends at 65,504."""
    check(lambda x: x.mean(), torch.full((80, 100), 10.0, dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ord", [2, 1, 0, 3, 0.5, float("inf"), -float("inf")])
@pytest.mark.parametrize("dim", [None, [0], [-1, 0]], ids=str)
def test_vector_norms(ord: float, dim: list[int] | None, dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, -2.0, 3.0], [1.0, 0.5, -4.0]]).to(dtype)
    check(lambda x: aten.linalg_vector_norm(x, ord, dim), x)
    check(lambda x: aten.linalg_vector_norm(x, ord, dim, True, dtype=torch.float64), x)


def test_a_norm_of_a_scalar() -> None:
    check(lambda x: (aten.linalg_vector_norm(x[0], 2, [0]), aten.linalg_vector_norm(x[0], 1)), torch.tensor([-3.0]))


def test_a_norm_of_16_bits_overflows_no_square() -> None:
    check(lambda x: aten.linalg_vector_norm(x), torch.full((4,), 1000.0, dtype=torch.float16))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: aten.ones_like(x),
        lambda x: aten.zeros_like(x, dtype=torch.int64),
        lambda x: aten.full_like(x, 2.5, dtype=torch.float64),
        lambda x: aten.full_like(x, True, dtype=torch.bool),
        lambda x: aten.new_ones(x, [2, 2], dtype=torch.bool),
        lambda x: aten.new_zeros(x, []),
        lambda x: aten.new_full(x, [3], -1),
        lambda x: torch.where(x > 0, x, aten.empty_like(x)),  # what is in memory is anything
        lambda x: torch.where(x[0, :2] > 0, x[0, :2], aten.new_empty(x, [2])),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_values_that_depend_on_no_data(make: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    check(make, torch.ones(2, 3, dtype=dtype))


def test_equal_ops_are_one_whatever_they_decompose_to() -> None:
    module = import_graph(traced(lambda x: (x.mean(0), (x + 0).mean(0), x.mean(0)), torch.randn(2, 2)).graph)
    made = Normalise().run(module).graph
    assert made.returns[0] == made.returns[2] != made.returns[1]
    assert [node.op.name for node in made.nodes].count("aten.sum.dim_IntList") == 2
