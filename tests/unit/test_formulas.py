"""Ops that captures take apart give what their kernels give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from samite.errors import CaptureError
from samite.frontend.decompositions import table
from samite.ir.context import TensorType
from samite.ir.importer import import_graph, trace
from samite.lowering import graph_to_fx
from samite.mesh import Mesh

aten = torch.ops.aten


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64) * 4 - 2


X, ROWS = rand(5, 4), torch.tensor([3, 0, 3])
LABELS, MANY = (
    torch.tensor([1, 0, 3, 3, 2]),
    torch.tensor([[1, 3, -1, 0], [-1, 1, 1, 1], [0, 1, 2, 3], [2, -1, 0, 0], [2, 3, 1, 0]]),
)
_, IS_TARGET = aten.multilabel_margin_loss_forward(X, MANY, 0)
CALLS: dict[str, tuple[Any, ...]] = {
    "put": (X, ROWS, rand(3)),
    "put of sums": (X, ROWS, rand(3), True),
    "masked_scatter": (X, X > 0, rand(5, 4)),
    "masked_scatter of one row": (X, rand(1, 4) > 0, rand(30)),
    "masked_scatter of nothing": (X, X > 9, rand(0)),
    "masked_scatter_backward": (X, X > 0, [3, 8]),
    "masked_scatter_backward to nothing": (X, X > 9, [0]),
    "repeat_interleave.Tensor": (torch.tensor([2, 0, 3]), 5),
    "scatter.reduce": (X, 0, torch.zeros(2, 3, dtype=torch.int64), rand(2, 3), "add"),
    "scatter.value_reduce": (X, 1, torch.ones(2, 3, dtype=torch.int64), 0.5, "multiply"),
    "index_put": (X, [X > 0], rand()),
    "index_put of sums": (X, [rand(5) > 0], rand(1), True),
    "_trilinear": (rand(3, 2), rand(4, 2, 5), rand(3, 5), [1, 3], [0], [1, 2], [2, 3]),
    "cholesky": (X.T @ X,),
    "cholesky above": (X.T @ X, True),
    "kthvalue": (rand(), 1),
    "std_mean.correction": (X, [1]),
    "new_zeros": (X, [2, 3]),
    "multi_margin_loss_backward": (rand(), X, LABELS, 1, 0.5),
    "multi_margin_loss_backward squared": (rand(), X, LABELS, 2, 1.0, rand(4), 2),
    "multi_margin_loss_backward by row": (rand(5), X, LABELS, 1, 1.0, None, 0),
    "multi_margin_loss_backward of one": (rand(), X[0], LABELS[:1], 1, 1.0),
    "multilabel_margin_loss_backward": (rand(), X, MANY, 1, IS_TARGET),
    "multilabel_margin_loss_backward by row": (rand(5), X, MANY, 0, IS_TARGET),
    "multilabel_margin_loss_backward of one": (rand(), X[0], MANY[0], 2, IS_TARGET[0]),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_formula_gives_what_its_kernel_gives(call: str) -> None:
    packet, _, overload = call.split(" ")[0].partition(".")
    op = getattr(getattr(aten, packet), overload or "default")
    args, kwargs = CALLS[call], {}
    if "reduce" in overload or packet == "repeat_interleave":
        args, kwargs = args[:-1], {op._schema.arguments[-1].name: args[-1]}
    assert_close(table()[op](*args, **kwargs), op(*args, **kwargs))


INDICES, OFFSETS = torch.tensor([1, 3, 1, 0, 4, 4, 2]), torch.tensor([0, 3, 3, 5])


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padding_idx", [-1, 1])
@pytest.mark.parametrize("weighed", [False, True])
def test_bags_of_embeddings(mode: int, last: bool, padding_idx: int, weighed: bool) -> None:
    if weighed and mode:
        return
    weight, samples, bags = rand(6, 3), rand(7) if weighed else None, len(OFFSETS) - last
    offsets = torch.cat([OFFSETS[:-1], torch.tensor([7])]) if last else OFFSETS
    arguments = (weight, INDICES, offsets, False, mode, False, samples, last, padding_idx)
    made, expected = table()[aten._embedding_bag.default](*arguments), aten._embedding_bag(*arguments)
    assert_close(made[0], expected[0])
    grad, options = rand(bags, 3), (mode, False, samples, padding_idx)
    backward = table()[aten._embedding_bag_backward.default]
    of_kernel = aten._embedding_bag_backward(grad, INDICES, offsets, *expected[1:], 6, False, *options)
    assert_close(backward(grad, INDICES, offsets, *made[1:], 6, False, *options), of_kernel)
    if mode < 2:  # the CPU's kernel counts other rows
        scaled = backward(grad, INDICES, offsets, *made[1:], 6, True, *options)
        assert_close(scaled, of_kernel / INDICES.bincount(minlength=6).clamp(min=1).unsqueeze(1))
    if weighed:
        op, where = aten._embedding_bag_per_sample_weights_backward.default, (weight, INDICES, offsets)
        found, wanted = (f(grad, *where, made[1], mode, padding_idx) for f in (table()[op], op))
        assert_close(found, wanted)


def test_sparse_gradients_stay_what_they_are() -> None:
    backward = table()[aten._embedding_bag_backward.default]
    arguments = (rand(4, 3), INDICES, OFFSETS, INDICES, INDICES, INDICES, 6, False, 0, True, None)
    assert backward(*arguments) is NotImplemented


def test_empty_tensors_are_the_same_on_every_rank() -> None:
    for op, args in (
        (aten.empty.memory_format, ()),
        (aten.empty_strided.default, ([1, 2],)),
        (aten.empty_permuted.default, ([1, 0],)),
    ):
        assert torch.equal(table()[op]([2, 3], *args), torch.zeros(2, 3))
    assert torch.equal(table()[aten.new_empty_strided.default](X, [2, 3], [1, 2]), torch.zeros(2, 3, dtype=X.dtype))
    assert torch.equal(table()[aten.empty_like.default](X), torch.zeros_like(X))


# ---- what is written out before import -----------------------------------------------------------


def run(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> torch.Tensor:
    """The function as the IR has it, on one rank."""
    types = [TensorType(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for x in operands]
    return graph_to_fx(trace(function, types), Mesh((), ()))(*operands)[0]


COMPLEX = torch.complex(rand(3), rand(3).flip(0))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * (1 + 2j),
        lambda x: 1j - x,
        lambda x: x ** (0.5 + 1j),
        lambda x: torch.full([3], 2 - 1j, dtype=torch.complex128) / x,
        lambda x: x.real.to(torch.complex128) * 1j,
        lambda x: torch.zeros_like(x, dtype=torch.complex64) + x,
    ],
)
def test_complex_literals(function: Callable[..., torch.Tensor]) -> None:
    assert_close(run(function, COMPLEX), function(COMPLEX))


def test_a_complex_number_where_no_tensor_can_be() -> None:
    with pytest.raises(CaptureError, match="takes the complex number 1j"):
        run(lambda x: torch.add(x, x, alpha=1j), COMPLEX)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.as_strided([2, 2], [1, 2]),
        lambda x: x.as_strided([3, 2], [4, 0], 3),
        lambda x: x.t().as_strided([4], [5]),
        lambda x: (x + 1).t().as_strided([2, 3], [4, 1], 2).sum(0),
        lambda x: torch.as_strided_scatter(x, x[:2, 1:3], [2, 2], [3, 1], 5),
        lambda x: torch.as_strided_scatter(x.t(), x[:2, 1:3], [2, 2], [1, 4]),
        lambda x: x[1:3].as_strided([2], [1], 5),
    ],
)
def test_storage_is_read_in_its_order(function: Callable[..., torch.Tensor]) -> None:
    assert_close(run(function, X), function(X))


@pytest.mark.parametrize("strided", [([6, 4], [4, 1]), ([2], [1], 19), ([2], [1], -1)])
def test_storage_beyond_the_elements_is_refused(strided: tuple[Any, ...]) -> None:
    graph = make_fx(lambda x: aten.as_strided(x, [2], [1]), tracing_mode="fake")(X).graph
    node = next(n for n in graph.nodes if n.op == "call_function")
    node.args = (node.args[0], *strided)
    with pytest.raises(CaptureError, match="reaches what is not an element of it"):
        import_graph(graph)


def test_writes_through_strides() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.as_strided([2, 2], [1, 2], 3).mul_(2)
        return y

    assert_close(run(write, X), write(X))
