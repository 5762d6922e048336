"""Small programs in plain MLIR text, each with the torch function that says what it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from samite.hal.program import Argument, ArgumentKind, Program, Result
from samite.layout import Layout
from samite.mesh import Mesh

__all__ = ["CASES", "Case", "argument", "program", "result"]

ONE = Mesh(("x",), (1,))
TYPES = """
!f = !torch.vtensor<[4,8],f32>
!row = !torch.vtensor<[4],f32>
!column = !torch.vtensor<[8],f32>
!scalar = !torch.vtensor<[],f32>
"""


@dataclass(frozen=True)
class Case:
    """One program; `reference` computes the results from the arguments."""

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    body: str
    reference: Callable[..., Sequence[torch.Tensor]]

    @property
    def program(self) -> Program:
        return program(self.name, self.arguments, self.results, self.body)


def argument(name: str, *shape: int, dtype: str = "float32", kind: ArgumentKind = "input") -> Argument:
    return Argument(name, kind, dtype, Layout.replicated(shape))


def result(*shape: int, dtype: str = "float32", alias: int = -1) -> Result:
    return Result("result", dtype, Layout.replicated(shape), alias)


def program(name: str, arguments: Sequence[Argument], results: Sequence[Result], body: str) -> Program:
    """The program on one rank whose function `main` is `body`."""
    module = f'{TYPES}module attributes {{dist.mesh = #dist.mesh<["x"], [1], ["cpu"]>}} {{{body}}}'
    return Program(name, ONE, module, tuple(arguments), tuple(results))


CASES = (
    Case(
        "matmul",
        (argument("a", 4, 8), argument("b", 8, 4)),
        (result(4, 4),),
        """
        func.func @main(%a: !f, %b: !torch.vtensor<[8,4],f32>) -> !torch.vtensor<[4,4],f32> {
          %0 = torch.aten.mm %a, %b : !f, !torch.vtensor<[8,4],f32> -> !torch.vtensor<[4,4],f32>
          return %0 : !torch.vtensor<[4,4],f32>
        }""",
        lambda a, b: [a @ b],
    ),
    Case(
        "matmul_bf16",
        (argument("a", 4, 8, dtype="bfloat16"), argument("b", 8, 4, dtype="bfloat16")),
        (result(4, 4, dtype="bfloat16"),),
        """
        func.func @main(%a: !torch.vtensor<[4,8],bf16>, %b: !torch.vtensor<[8,4],bf16>) -> !torch.vtensor<[4,4],bf16> {
          %0 = torch.aten.mm %a, %b : !torch.vtensor<[4,8],bf16>, !torch.vtensor<[8,4],bf16>
              -> !torch.vtensor<[4,4],bf16>
          return %0 : !torch.vtensor<[4,4],bf16>
        }""",
        lambda a, b: [a @ b],
    ),
    Case(
        "pointwise",
        (argument("a", 4, 8), argument("b", 8)),
        (result(4, 8),),
        """
        func.func @main(%a: !f, %b: !column) -> !f {
          %two = torch.constant.int 2
          %0 = torch.aten.tanh %a : !f -> !f
          %1 = torch.aten.mul.Tensor %0, %a : !f, !f -> !f
          %2 = torch.aten.add.Tensor %1, %b, %two : !f, !column, !torch.int -> !f
          return %2 : !f
        }""",
        lambda a, b: [torch.tanh(a) * a + 2 * b],
    ),
    Case(
        "reduction",
        (argument("a", 4, 8),),
        (result(4), result(8), result()),
        """
        func.func @main(%a: !f) -> (!row, !column, !scalar) {
          %none = torch.constant.none
          %false = torch.constant.bool false
          %zero = torch.constant.int 0
          %last = torch.constant.int -1
          %dims = torch.prim.ListConstruct %last : (!torch.int) -> !torch.list<int>
          %first = torch.prim.ListConstruct %zero : (!torch.int) -> !torch.list<int>
          %0 = torch.aten.sum.dim_IntList %a, %dims, %false, %none
              : !f, !torch.list<int>, !torch.bool, !torch.none -> !row
          %1 = torch.aten.amax %a, %first, %false : !f, !torch.list<int>, !torch.bool -> !column
          %2 = torch.aten.sum %a, %none : !f, !torch.none -> !scalar
          return %0, %1, %2 : !row, !column, !scalar
        }""",
        lambda a: [a.sum(-1), a.amax(0), a.sum()],
    ),
    Case(
        "softmax",
        (argument("a", 4, 8),),
        (result(4, 8),),
        """
        func.func @main(%a: !f) -> !f {
          %false = torch.constant.bool false
          %last = torch.constant.int -1
          %0 = torch.aten._softmax %a, %last, %false : !f, !torch.int, !torch.bool -> !f
          return %0 : !f
        }""",
        lambda a: [torch.softmax(a, -1)],
    ),
    Case(
        "embedding",
        (argument("weight", 4, 8), argument("index", 2, 3, dtype="int64")),
        (result(2, 3, 8),),
        """
        func.func @main(%w: !f, %i: !torch.vtensor<[2,3],si64>) -> !torch.vtensor<[2,3,8],f32> {
          %pad = torch.constant.int -1
          %false = torch.constant.bool false
          %0 = torch.aten.embedding %w, %i, %pad, %false, %false
              : !f, !torch.vtensor<[2,3],si64>, !torch.int, !torch.bool, !torch.bool -> !torch.vtensor<[2,3,8],f32>
          return %0 : !torch.vtensor<[2,3,8],f32>
        }""",
        lambda weight, index: [weight[index]],
    ),
    Case(
        "views",
        (argument("a", 4, 8),),
        (result(8, 2, 2), result(4, 3)),
        """
        func.func @main(%a: !f) -> (!torch.vtensor<[8,2,2],f32>, !torch.vtensor<[4,3],f32>) {
          %zero = torch.constant.int 0
          %one = torch.constant.int 1
          %two = torch.constant.int 2
          %eight = torch.constant.int 8
          %sizes = torch.prim.ListConstruct %eight, %two, %two
              : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
          %0 = torch.aten.transpose.int %a, %zero, %one : !f, !torch.int, !torch.int -> !torch.vtensor<[8,4],f32>
          %1 = torch.aten.view %0, %sizes : !torch.vtensor<[8,4],f32>, !torch.list<int> -> !torch.vtensor<[8,2,2],f32>
          %2 = torch.aten.slice.Tensor %a, %one, %two, %eight, %two
              : !f, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[4,3],f32>
          return %1, %2 : !torch.vtensor<[8,2,2],f32>, !torch.vtensor<[4,3],f32>
        }""",
        lambda a: [a.t().reshape(8, 2, 2), a[:, 2:8:2]],
    ),
    Case(
        "where",
        (argument("a", 4, 8), argument("b", 4, 8)),
        (result(4, 8), result(4, 8, dtype="bool")),
        """
        func.func @main(%a: !f, %b: !f) -> (!f, !torch.vtensor<[4,8],i1>) {
          %0 = torch.aten.gt.Tensor %a, %b : !f, !f -> !torch.vtensor<[4,8],i1>
          %1 = torch.aten.where.self %0, %a, %b : !torch.vtensor<[4,8],i1>, !f, !f -> !f
          return %1, %0 : !f, !torch.vtensor<[4,8],i1>
        }""",
        lambda a, b: [torch.maximum(a, b), a > b],
    ),
    Case(
        "literal",
        (argument("a", 4),),
        (result(4),),
        """
        func.func @main(%a: !row) -> !row {
          %0 = torch.vtensor.literal(dense<[1.0, -2.0, 0.5, 4.0]> : tensor<4xf32>) : !row
          %1 = torch.aten.mul.Tensor %a, %0 : !row, !row -> !row
          return %1 : !row
        }""",
        lambda a: [a * torch.tensor([1.0, -2.0, 0.5, 4.0])],
    ),
    Case(
        "scalar",
        (argument("a", 4), argument("lr", kind="scalar")),
        (result(4),),
        """
        func.func @main(%a: !row, %lr: !scalar) -> !row {
          %0 = torch.aten.mul.Tensor %a, %lr : !row, !scalar -> !row
          return %0 : !row
        }""",
        lambda a, lr: [a * lr],
    ),
    Case(
        "passed_on",
        (argument("a", 4), argument("b", 4)),
        (result(4), result(4), result(4)),
        """
        func.func @main(%a: !row, %b: !row) -> (!row, !row, !row) {
          %0 = torch.aten.neg %a : !row -> !row
          return %0, %b, %0 : !row, !row, !row
        }""",
        lambda a, b: [-a, b, -a],
    ),
    Case(
        "empty",
        (argument("a", 0, 8),),
        (result(0, 8), result(8)),
        """
        func.func @main(%a: !torch.vtensor<[0,8],f32>) -> (!torch.vtensor<[0,8],f32>, !column) {
          %none = torch.constant.none
          %false = torch.constant.bool false
          %zero = torch.constant.int 0
          %dims = torch.prim.ListConstruct %zero : (!torch.int) -> !torch.list<int>
          %0 = torch.aten.exp %a : !torch.vtensor<[0,8],f32> -> !torch.vtensor<[0,8],f32>
          %1 = torch.aten.sum.dim_IntList %0, %dims, %false, %none
              : !torch.vtensor<[0,8],f32>, !torch.list<int>, !torch.bool, !torch.none -> !column
          return %0, %1 : !torch.vtensor<[0,8],f32>, !column
        }""",
        lambda a: [a, torch.zeros(8)],
    ),
    Case(
        "axis_index",
        (argument("a", 4),),
        (result(4),),
        """
        func.func @main(%a: !row) -> !row {
          %one = torch.constant.int 1
          %0 = "dist.axis_index"() {axes = ["x"]} : () -> !torch.vtensor<[],si64>
          %1 = torch.aten.add.Tensor %a, %0, %one : !row, !torch.vtensor<[],si64>, !torch.int -> !row
          return %1 : !row
        }""",
        lambda a: [a],
    ),
)
