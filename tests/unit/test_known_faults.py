"""Faults that other systems were reported to have, each as a test against the value of one device, forward and
gradient. Everything runs compiled, on simulated ranks whose padding is poisoned."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import samite
from samite import Partial, Replicate, Shard
from samite.ir.module import Module
from samite.layout import plan
from samite.lowering import graph_to_fx
from samite.passes.traffic import collectives
from samite.rules.tables import elementwise as tables
from samite.runtime.interpreter import generate, run_lockstep
from samite.runtime.sharding import assemble, lay
from samite.testing import counter_rng

Placements = Mapping[str, Mapping[str, Any]]
Function = Callable[..., Tensor | tuple[Tensor, ...]]


def doubles(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_gradients(function: Function, inputs: Sequence[Tensor]) -> Callable[..., tuple[Tensor | None, ...]]:
    """`function`'s results, and the gradients of their weighted sum."""
    learned = [i for i, x in enumerate(inputs) if x.is_floating_point()]

    def run(*xs: Tensor) -> tuple[Tensor | None, ...]:
        made = function(*xs)
        results = made if isinstance(made, tuple) else (made,)
        weighed = [r * torch.arange(1, 1 + r.numel(), dtype=r.dtype).view(r.shape) for r in results if r.requires_grad]
        if not weighed:
            return results
        gradients = torch.autograd.grad(
            torch.stack([w.sum() for w in weighed]).sum(), [xs[i] for i in learned], allow_unused=True
        )
        return (*results, *gradients)

    return run


def compiled(function: Function, inputs: Sequence[Tensor], axes: Mapping[str, int], placements: Placements) -> Any:
    options: dict[str, Any] = dict(axes)
    mesh = samite.mesh("cpu", engine="lockstep", **options)
    named = {f"xs.{i}": placements[f"x{i}"] for i in range(len(inputs)) if f"x{i}" in placements}
    return samite.compile(with_gradients(function, inputs), mesh=mesh, placements=named)


def leaves(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]


def same(function: Function, inputs: Sequence[Tensor], axes: Mapping[str, int], placements: Placements) -> None:
    """On the mesh, with input i (`x0`, `x1`, …) placed so, it gives what one device does."""
    wanted = with_gradients(function, inputs)(*leaves(inputs))
    found = compiled(function, inputs, axes, placements)(*leaves(inputs))
    for want, have in zip(wanted, found, strict=True):
        assert (want is None) == (have is None)
        if want is not None:
            torch.testing.assert_close(have.detach().clone(), want.detach(), equal_nan=True)


def verbs(
    function: Function, inputs: Sequence[Tensor], axes: Mapping[str, int], placements: Placements
) -> Counter[str]:
    """The collectives of the compiled function and its gradient."""
    _, built = compiled(function, inputs, axes, placements).lower(*leaves(inputs))
    return Counter(c.verb for c in collectives(Module.parse(built.program.module).graph, built.program.mesh))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("size", range(1, 8))
def test_mean_and_variance_over_a_split_dim_with_empty_shards(size: int, ranks: int) -> None:
    def moments(x: Tensor) -> tuple[Tensor, ...]:
        return x.mean(0), x.var(0, correction=0), x.mean(), x.std(dim=0, correction=0, keepdim=True)

    same(moments, [doubles(size, 3)], {"dp": ranks}, {"x0": {"dp": Shard(0)}})


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_splitting_and_gathering_gives_the_value_back(ranks: int) -> None:
    def there_and_back(x: Tensor) -> Tensor:
        return samite.constrain(samite.constrain(x, {"dp": Shard(0)}) * 2, {"dp": Replicate()})

    for size in range(2 * ranks + 2):
        same(there_and_back, [doubles(size, 2)], {"dp": ranks}, {})


@pytest.mark.parametrize("number", [1, -2.5])
def test_a_number_added_to_a_partial_sum_counts_once(number: float) -> None:
    def added(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return x @ w + number, number - x @ w, (x @ w).sub(number, alpha=2)

    same(added, [doubles(3, 8), doubles(8, 2, seed=1)], {"tp": 4}, {"x0": {"tp": Shard(1)}, "x1": {"tp": Shard(0)}})


def _takes_a_tensor_alone(method: Callable[[Tensor], Any]) -> bool:
    try:
        return isinstance(method(doubles(2)), Tensor)
    except (RuntimeError, TypeError):
        return False


UNARY = sorted(
    name
    for name in (tables.UNARY + tables.FURTHER_UNARY + tables.LINEAR_UNARY).split()
    if hasattr(Tensor, name) and _takes_a_tensor_alone(getattr(Tensor, name))
)
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(1),
    "amax": lambda x: x.amax(0),
    "amin": lambda x: x.amin(1),
    "prod": lambda x: x.prod(0),
    "norm": lambda x: x.norm(),
    "norm 1": lambda x: x.norm(p=1, dim=0),
    "norm inf": lambda x: torch.linalg.vector_norm(x, ord=float("inf")),
    "logsumexp": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(0),
    "cumsum": lambda x: x.cumsum(1),
    "any": lambda x: (x > 0).any(0),
    "var": lambda x: x.var(0),
}


@pytest.mark.parametrize("name", [*UNARY, *REDUCTIONS])
def test_what_follows_a_partial_sum_whose_terms_have_both_signs(name: str) -> None:
    follow = REDUCTIONS.get(name) or (lambda x: getattr(x, name)())

    def after(x: Tensor, w: Tensor) -> Tensor:
        return follow(x @ w)

    inputs = [doubles(3, 8), doubles(8, 2, seed=1)]
    same(after, inputs, {"tp": 4}, {"x0": {"tp": Shard(1)}, "x1": {"tp": Shard(0)}})


def test_clamping_a_partial_sum_in_place_and_through_a_view() -> None:
    def clamped(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        whole, viewed = x @ w, x @ w
        whole.clamp_(-0.5, 0.5)
        viewed[1:].view(-1).clamp_(max=0.25)
        return whole, viewed

    inputs = [doubles(3, 8), doubles(8, 2, seed=1)]
    same(clamped, inputs, {"tp": 2}, {"x0": {"tp": Shard(1)}, "x1": {"tp": Shard(0)}})


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_first_of_equal_elements_along_a_split_dim(ranks: int) -> None:
    def found(x: Tensor) -> tuple[Tensor, ...]:
        values, places = x.max(1)
        return values, places, x.argmax(1), x.argmin(1), x.min(1).indices

    x = torch.tensor([[1, 3, 3, 0, 3], [2, 2, 2, 2, 2], [0, 0, -1, -1, 0]], dtype=torch.float64)
    same(found, [x], {"tp": ranks}, {"x0": {"tp": Shard(1)}})


@pytest.mark.parametrize("accumulate", [True, False])
def test_index_put_over_all_shards(accumulate: bool) -> None:
    """Several rows of one index add up; where they do not, they are equal, since torch leaves open which one stays."""

    def put(x: Tensor, row: Tensor) -> Tensor:
        values = row.expand(6, 3) if not accumulate else row * torch.arange(1.0, 7.0, dtype=row.dtype)[:, None]
        return x.index_put((torch.tensor([0, 4, 4, 2, 0, 6]),), values, accumulate=accumulate)

    same(put, [doubles(7, 3), doubles(3, seed=1)], {"dp": 3}, {"x0": {"dp": Shard(0)}})


def test_scatter_along_an_unsplit_dim_needs_no_collective() -> None:
    def scattered(x: Tensor, source: Tensor, index: Tensor) -> Tensor:
        return x.scatter(1, index, source) + x.scatter_add(1, index, source)

    index = torch.tensor([[0, 2], [1, 3], [4, 0], [2, 1]])
    inputs = [doubles(4, 5), doubles(4, 2, seed=1), index]
    placed = {f"x{i}": {"dp": Shard(0)} for i in range(3)}
    same(scattered, inputs, {"dp": 2}, placed)
    assert not verbs(scattered, inputs, {"dp": 2}, placed)


def test_a_linear_layer_whose_input_is_split_over_time() -> None:
    def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.linear(x, w, b)

    inputs = [doubles(2, 6, 4), doubles(3, 4, seed=1), doubles(3, seed=2)]
    for size in (2, 4):
        same(linear, inputs, {"sp": size}, {"x0": {"sp": Shard(1)}})


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (2, 6), (6, 2), (12, 1), (1, 12), (2, 2, 3), (2, 3, 2), (3, 2, 2)])
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_views_of_a_dim_that_two_axes_split(shape: tuple[int, ...], order: tuple[str, str]) -> None:
    def viewed(x: Tensor) -> tuple[Tensor, ...]:
        y = x.view(shape)
        return y, y.sum(0), (y * 2).reshape(12)

    for sizes in itertools.product((2, 3), repeat=2):
        axes = dict(zip(order, sizes, strict=True))
        same(viewed, [doubles(12)], axes, {"x0": dict.fromkeys(order, Shard(0))})


def test_two_calls_that_differ_in_one_argument_that_is_no_tensor() -> None:
    def powered(x: Tensor, exponent: float, keepdim: bool) -> tuple[Tensor, ...]:
        y = x.pow(exponent).sum(0, keepdim=keepdim)
        return y, *torch.autograd.grad(y.sum(), x)

    mesh = samite.mesh("cpu", engine="lockstep", dp=2)
    step = samite.compile(powered, mesh=mesh, placements={"x": {"dp": Shard(0)}})
    x = doubles(4, 3).abs().requires_grad_()
    for exponent, keepdim in ((2.0, False), (3.0, False), (2.0, True), (2.0, False)):
        for found, wanted in zip(step(x, exponent, keepdim), powered(x, exponent, keepdim), strict=True):
            torch.testing.assert_close(found.detach().clone(), wanted.detach())


def test_two_embeddings_split_by_vocabulary() -> None:
    def interleaved(words: Tensor, kinds: Tensor, i: Tensor, j: Tensor) -> Tensor:
        first, second = F.embedding(i, words), F.embedding(j, kinds)
        return F.embedding(j, words) * second + first * F.embedding(i.remainder(5), kinds)

    inputs = [
        doubles(11, 4),
        doubles(5, 4, seed=1),
        torch.tensor([[0, 10, 3], [7, 7, 1]]),
        torch.tensor([[4, 0, 0], [1, 3, 2]]),
    ]
    placed = {"x0": {"tp": Shard(0)}, "x1": {"tp": Shard(0)}, "x2": {"dp": Shard(0)}}
    same(interleaved, inputs, {"dp": 2, "tp": 3}, placed)


def test_a_loss_of_ones_own_on_class_split_log_softmax() -> None:
    def focal(logits: Tensor, labels: Tensor) -> Tensor:
        log_p = logits.log_softmax(-1)
        picked = log_p.gather(1, labels[:, None])[:, 0]
        return -((1 - picked.exp()) ** 2 * picked).mean() + 0.1 * (log_p.exp() * log_p).sum(-1).mean()

    same(focal, [doubles(4, 7), torch.tensor([6, 0, 3, 3])], {"tp": 3}, {"x0": {"tp": Shard(1)}})


@pytest.mark.parametrize("axes", [{"dp": 1}, {"dp": 2}, {"dp": 4}, {"dp": 2, "tp": 2}])
def test_dropout_drops_the_same_elements_on_any_mesh(axes: dict[str, int]) -> None:
    def dropped(x: Tensor) -> tuple[Tensor, ...]:
        y = F.dropout(x, 0.4)
        return y, *torch.autograd.grad((y * y).sum(), x)

    x = torch.ones(8, 6, dtype=torch.float64, requires_grad=True)
    options: dict[str, Any] = dict(axes)
    mesh = samite.mesh("cpu", engine="lockstep", **options)
    placed = {"x": {axis: Shard(dim) for dim, axis in enumerate(axes)}}
    torch.manual_seed(3)
    found = samite.compile(dropped, mesh=mesh, placements=placed)(x)
    torch.manual_seed(3)
    with counter_rng():
        wanted = dropped(x)
    for have, want in zip(found, wanted, strict=True):
        assert torch.equal(have.detach().clone(), want.detach())


@pytest.mark.parametrize("dim", [0, 2, 3])
def test_a_strided_convolution_split_over_the_batch_or_in_space(dim: int) -> None:
    def convolved(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, stride=2, padding=3)

    inputs = [doubles(4, 2, 14, 14), doubles(3, 2, 7, 7, seed=1)]
    same(convolved, inputs, {"dp": 2}, {"x0": {"dp": Shard(dim)}})


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_gradient_through_a_collective(ranks: int) -> None:
    """Each use of a reduced value hands its gradient back once, however many ranks reduced."""

    def twice_used(x: Tensor, w: Tensor) -> Tensor:
        y = samite.constrain(x @ w, {"tp": Replicate()})
        return y * y + y.sum()

    inputs = [doubles(3, 8), doubles(8, 2, seed=1)]
    same(twice_used, inputs, {"tp": ranks}, {"x0": {"tp": Shard(1)}, "x1": {"tp": Shard(0)}})


def test_a_program_read_back_from_its_text_has_every_collective() -> None:
    def mixed(x: Tensor, w: Tensor) -> Tensor:
        y = samite.constrain(x @ w, {"dp": Shard(0), "tp": Shard(1)})
        return y.softmax(-1) @ w.t()

    inputs = [doubles(4, 8), doubles(8, 6, seed=1)]
    placed = {"x0": {"dp": Shard(0), "tp": Shard(1)}, "x1": {"tp": Shard(0)}}
    options = {"dp": 2, "tp": 2}
    step = compiled(mixed, inputs, options, placed)
    _, built = step.lower(*leaves(inputs))
    again = Module.parse(Module.parse(built.program.module).bytecode())
    assert again.text() == built.program.module
    kinds = Counter(c.verb for c in collectives(again.graph, again.mesh))
    assert kinds == verbs(mixed, inputs, options, placed)
    assert sum(kinds.values()) >= 3
    code = generate(graph_to_fx(again.graph, again.mesh), "again")
    mesh = built.program.mesh
    layouts = [argument.layout for argument in built.program.arguments]
    given = [
        [lay(x, layout, mesh, rank).clone() for x, layout in zip(inputs, layouts, strict=True)]
        for rank in range(mesh.size)
    ]
    outputs = run_lockstep([code.bind(mesh, rank) for rank in range(mesh.size)], given, mesh, code)
    wanted = with_gradients(mixed, inputs)(*leaves(inputs))
    for index, (want, result) in enumerate(zip(wanted, built.program.results, strict=True)):
        assert want is not None
        found = assemble([rank[index].contiguous() for rank in outputs], result.layout, mesh, check=True)
        torch.testing.assert_close(found, want.detach())


ENDS = {"R": Replicate(), "S0": Shard(0), "S1": Shard(1), "P": Partial()}


@pytest.mark.parametrize(
    "pair", itertools.product(itertools.product(ENDS, repeat=2), itertools.product("RS", repeat=2))
)
def test_a_reshard_holds_no_more_than_its_plan_says(pair: tuple[tuple[str, str], tuple[str, str]]) -> None:
    source, target = pair
    wish = {axis: Replicate() if word == "R" else Shard(1) for axis, word in zip("ab", target, strict=True)}

    def moved(x: Tensor) -> Tensor:
        return samite.constrain(x, wish)

    placed = {"x": {axis: ENDS[word] for axis, word in zip("ab", source, strict=True)}}
    mesh = samite.mesh("cpu", engine="lockstep", a=2, b=3)
    step, x = samite.compile(moved, mesh=mesh, placements=placed), doubles(12, 6)
    _, built = step.lower(x)
    graph = Module.parse(built.program.module).graph
    ends = built.program.arguments[0].layout, built.program.results[0].layout
    planned = max(plan(*ends, mesh).peak(mesh), *(prod(layout.local_shape(mesh)) for layout in ends))
    assert max(prod(type.shape) for type in graph.types) <= planned
    assert torch.equal(step(x).clone(), x)
