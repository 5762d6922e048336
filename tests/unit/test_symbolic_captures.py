"""Captures with symbols for sizes: at any sizes for which one holds, it is the graph that a capture there gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from captures import train_step
from models import CNN, GPT, MLP, Llama, batch, images
from samite.errors import CaptureError
from samite.frontend import Capture, StateTree, capture
from samite.frontend.instances import difference
from samite.frontend.symbolic import SymbolicCapture, capture_symbolically
from samite.frontend.symbols import Dim, Sizes, varying

Call = tuple[Any, ...]


def symbolic(fn: Callable[..., Any], first: Call, second: Call) -> SymbolicCapture:
    """What the second of two calls that differ in sizes is captured as."""
    before, now = StateTree.from_call(fn, first), StateTree.from_call(fn, second)
    groups = varying([before.sizes], now.sizes)
    assert groups
    return capture_symbolically(now, groups, before.sizes, capture(fn, tree=before))


def assert_same(got: Capture, wanted: Capture) -> None:
    assert difference(got.graph, wanted.graph) is None, f"{got.graph.graph}\n{wanted.graph.graph}"
    assert got.arguments == wanted.arguments
    assert got.results == wanted.results
    assert got.deleted == wanted.deleted
    assert got.constants == wanted.constants


def check(fn: Callable[..., Any], *calls: Call, holds: bool = True) -> SymbolicCapture:
    made = symbolic(fn, *calls[:2])
    for call in calls:
        tree = StateTree.from_call(fn, call)
        if call is calls[1] or holds:
            assert_same(made.at(tree.sizes), capture(fn, tree=tree))
        else:
            assert not made.holds(tree.sizes)
    return made


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], tuple[Tensor, Tensor]]]] = {
    "gpt": (lambda: GPT(layers=1), lambda size, time: batch(32, size, time)),
    "gpt, dropout": (lambda: GPT(layers=1, dropout=0.1), lambda size, time: batch(32, size, time)),
    "llama": (lambda: Llama(layers=1), lambda size, time: batch(32, size, time)),
    "mlp": (MLP, lambda size, _: (torch.randn(size, 16), torch.randint(0, 8, (size,)))),
    "cnn": (CNN, lambda size, _: images(size, 3, 8, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_at_other_sizes(name: str) -> None:
    make, data = MODELS[name]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train_step(model, optimizer, *data(2, 4))
    made = check(train_step, *((model, optimizer, *data(size, time)) for size, time in ((4, 8), (3, 6), (20, 9))))
    assert not made.fixed


def in_place(x: Tensor) -> Tensor:
    made = torch.zeros(x.shape[0], 8)
    made[:2] = x[:2]
    made.view(-1)[3] = 1
    made[1:] *= 2
    x.zero_()
    return made


MODULES = {"attention": nn.MultiheadAttention(8, 2, batch_first=True), "norm": nn.BatchNorm1d(8)}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arithmetic of sizes": lambda x: x.sum() / x.shape[0] + (1 / x.size(0)) ** 0.5 + x.numel() // 3,
    "a mean, a variance": lambda x: x.mean() + x.var(0) + x.std(),
    "views": lambda x: x.reshape(-1, 2, 4).permute(1, 0, 2).reshape(2, -1),
    "parts": lambda x: torch.cat([x[: x.shape[0] // 2], x[-1:], x.unfold(0, 2, 1).sum(-1), F.pad(x, (0, 0, 1, 2))]),
    "repeats": lambda x: x.repeat(2, 1) + x.repeat_interleave(2, 0),
    "made of sizes": lambda x: torch.arange(x.shape[0]) @ torch.tril(torch.ones(x.shape[0], x.shape[0])) @ x,
    "pairs": lambda x: torch.einsum("ij,kj->ik", x, x).softmax(-1) @ x,
    "along the dim": lambda x: x.cumsum(0) + x.flip(0) + x.roll(1, 0) + x.sort(0).values,
    "in place": in_place,
    "random": lambda x: F.dropout(x + torch.rand(x.shape[0], 8) + torch.randn(x.size(0), 1) + torch.rand_like(x), 0.3),
    "a loss": lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.int64), label_smoothing=0.1),
    "batch statistics": lambda x, modules: modules["norm"](x),
    "attention": lambda x, modules: modules["attention"](x[None], x[None], x[None])[0],
    "another kernel": lambda x: F.interpolate(x[None], scale_factor=2.0),
    "sizes returned": lambda x: (x, x.shape, x.shape[0] * 2, [x.shape[0] > 0]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_at_other_sizes(name: str) -> None:
    fn = FUNCTIONS[name]
    others = [MODULES] if "modules" in fn.__code__.co_varnames else []
    calls = [(torch.randn(size, 8), *others) for size in (4, 6, 17)]
    if name != "another kernel":
        check(fn, *calls)
        return
    # With symbols torch takes it apart in Python. It must compute the same.
    made = symbolic(fn, *calls[:2])
    for x, *_ in calls:
        got = made.at(StateTree.from_call(fn, (x,)).sizes)
        torch.testing.assert_close(got.graph(x), (fn(x),))


def test_where_a_function_goes_another_way_the_graph_does_not_hold() -> None:
    check(lambda x: x * 2 if x.shape[0] > 5 else x, *((torch.ones(size),) for size in (4, 6, 3)), holds=False)
    check(lambda x: x.view(-1, 2), (torch.ones(4),), (torch.ones(6),), (torch.ones(20),))


@pytest.mark.parametrize("size", [0, 1])
def test_0_and_1_are_other_graphs(size: int) -> None:
    made = check(lambda x: x + 1, (torch.ones(4, 2),), (torch.ones(6, 2),))
    assert not made.holds(((size, 2),))
    assert not made.holds(((6, 3),)), "this dim did not vary"


def test_dims_that_vary_together_stay_equal() -> None:
    made = check(lambda x, y: x + y, *((torch.ones(n), torch.ones(n)) for n in (4, 6, 9)))
    assert not made.holds(((4,), (6,)))
    made = check(lambda x, y: x.sum() + y.sum(), *((torch.ones(n), torch.ones(m)) for n, m in ((4, 5), (6, 6), (5, 9))))
    assert made.holds(((3,), (8,)))


def fixes(x: Tensor) -> Tensor:
    return x * int(x.shape[0]) + x.shape[1]


def test_a_size_that_python_needs_is_told_with_its_line() -> None:
    made = symbolic(fixes, (torch.ones(4, 2),), (torch.ones(6, 3),))
    line = f"test_symbolic_captures.py:{fixes.__code__.co_firstlineno + 1}"
    assert {dim: where.rpartition("/")[2] for dim, where in made.fixed.items()} == {Dim(0, 0): line}
    assert made.holds(((6, 9),))
    assert not made.holds(((4, 3),))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * 2 if isinstance(x.shape[0], int) else x * 3,
        lambda x: (x, f"{x.shape[0]} rows"),
        lambda x: (x, type(x.shape[0])),
    ],
)
def test_a_function_that_does_something_else_with_symbols(fn: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError, match="something else if a size is no int"):
        symbolic(fn, (torch.ones(4),), (torch.ones(6),))


def test_what_depends_on_data_is_refused_as_without_symbols() -> None:
    with pytest.raises(CaptureError, match="depends on data"):
        symbolic(lambda x, y: x[y > 0], (torch.ones(4), torch.ones(4)), (torch.ones(6), torch.ones(6)))


SHAPES = st.lists(st.integers(1, 2), min_size=1, max_size=3)  # how many dims each input has


def sizes(dims: list[int]) -> st.SearchStrategy[Sizes]:
    return st.tuples(*(st.tuples(*[st.integers(0, 4)] * count) for count in dims))


@given(SHAPES.flatmap(lambda dims: st.lists(sizes(dims), min_size=2, max_size=4)))
def test_varying_dims(calls: list[Sizes]) -> None:
    *seen, now = calls
    groups = varying(seen, now)
    found = {dim for group in groups for dim in group}
    for dim in (Dim(i, d) for i, shape in enumerate(now) for d in range(len(shape))):
        assert (dim in found) == (dim.of(now) > 1 and any(dim.of(sizes) != dim.of(now) for sizes in seen))
    for group in groups:
        for other in groups:
            together = all(group[0].of(sizes) == other[0].of(sizes) for sizes in calls)
            assert together == (group is other)
        assert all(dim.of(sizes) == group[0].of(sizes) for sizes in calls for dim in group)
    assert not varying(seen, now, found)
