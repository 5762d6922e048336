"""Counter-based random numbers: the bits, the distributions, and captures that draw what their oracle draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import samite
from captures import Replay, check_steps
from samite.errors import CaptureError
from samite.frontend import capture
from samite.ir.random import philox, philox_uniform, philox_uniform_at
from samite.testing.counter_rng import counter_rng

ONES = 0xFFFFFFFF


@pytest.mark.parametrize("counter, key, words", [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
], ids=["zeros", "ones", "pi"])  # fmt: skip
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]) -> None:
    """The vectors of the authors' Random123."""
    assert tuple(int(w) for w in philox((torch.tensor(counter[0]), *counter[1:]), key)) == words


def by_definition(seed: int, op: int, index: int) -> float:
    """One element, word by word in Python's integers."""
    block, k = index // 4, [seed & ONES, (seed >> 32) & ONES]
    c = [block & ONES, block >> 32, op, 0]
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & ONES, (p0 >> 32) ^ c[3] ^ k[1], p0 & ONES]
        k = [(k[0] + 0x9E3779B9) & ONES, (k[1] + 0xBB67AE85) & ONES]
    return (c[index % 4] >> 8) * 2.0**-24


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 1000), st.lists(st.integers(0, 2**40), min_size=1, max_size=9))
def test_elements_follow_the_definition(seed: int, op: int, index: list[int]) -> None:
    got = philox_uniform_at(torch.tensor(seed), op, torch.tensor(index))
    assert got.tolist() == [by_definition(seed, op, i) for i in index]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 7), max_size=4), st.data())
def test_shards_draw_what_the_whole_does(size: list[int], data: st.DataObject) -> None:
    whole = philox_uniform(torch.tensor(5), 3, size)
    assert whole.shape == torch.Size(size)
    index = torch.arange(math.prod(size)).view(size)
    for dim, n in enumerate(size):
        start = data.draw(st.integers(0, n))
        stop = data.draw(st.integers(start, n))
        whole, index = whole.narrow(dim, start, stop - start), index.narrow(dim, start, stop - start)
    assert torch.equal(philox_uniform_at(torch.tensor(5), 3, index), whole)


def test_large_draws_are_uniform_and_independent() -> None:
    u = torch.stack(
        [philox_uniform(torch.tensor(s), op, [300, 333]) for s, op in ((0, 0), (0, 1), (1, 0), (1 << 32, 0))]
    )
    assert u.dtype == torch.float32
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u.numpy(), bins=64, range=(0, 1))[0]
    assert ((counts - u.numel() / 64) ** 2 / (u.numel() / 64)).sum() < 63 + 5 * math.sqrt(2 * 63)
    correlation = torch.corrcoef(u.flatten(1))
    assert (correlation - torch.eye(4)).abs().max() < 5 / math.sqrt(u[0].numel())
    assert abs(torch.corrcoef(torch.stack([u[0, 0, :-1], u[0, 0, 1:]]))[0, 1]) < 0.3


def test_op_registration() -> None:
    torch.library.opcheck(philox_uniform, (torch.tensor(1), 2, [3, 5]))
    torch.library.opcheck(philox_uniform_at, (torch.tensor(1), 2, torch.arange(6).view(2, 3)))


X = torch.linspace(0, 1, 4096).view(64, 64)

DRAWS: list[tuple[str, Callable[[Tensor], Any]]] = [
    ("rand", lambda x: torch.rand(3, 5) + torch.rand((3, 5)) + torch.rand(size=(3, 5), dtype=torch.float64)),
    ("rand_like", lambda x: torch.rand_like(x) + torch.rand_like(x, dtype=torch.float64)),
    ("randn", lambda x: torch.randn(64, 64, device=x.device)),
    ("randn_like", lambda x: torch.randn_like(x)),
    (
        "randint",
        lambda x: (torch.randint(7, (64,)), torch.randint(-3, 3, (64,)), torch.randint(low=1, high=9, size=(9,))),
    ),
    ("bernoulli", lambda x: (torch.bernoulli(x), x.bernoulli(), torch.bernoulli(x, 0.3), x.clone().bernoulli_(0.2))),
    ("bernoulli_", lambda x: torch.empty(64, 64).bernoulli_(x)),
    ("uniform_", lambda x: torch.empty(9, 9).uniform_(-2, 3)),
    ("normal_", lambda x: torch.empty(9, 9).normal_(2.0, std=0.5)),
    (
        "dropout",
        lambda x: (F.dropout(x, 0.3), torch.dropout(x, 0.3, True), F.dropout(x, 1.0), F.dropout(x, 0.3, False)),
    ),
    ("native_dropout", lambda x: torch.native_dropout(x, 0.3, True)),
    ("dropout2d", lambda x: F.dropout2d(x.view(4, 4, 16, 16), 0.5)),
    ("dropout_", lambda x: F.dropout(x.clone(), 0.3, inplace=True)),
    ("bfloat16", lambda x: (torch.rand(4096, dtype=torch.bfloat16), torch.rand(4096, dtype=torch.float16))),
    ("init", lambda x: torch.nn.init.kaiming_uniform_(torch.empty(8, 8))),
    (
        "normal",
        lambda x: (torch.normal(x, 2.0), torch.normal(0.5, x), torch.normal(x, x), torch.normal(1, 2.0, (3, 4))),
    ),
    ("exponential_", lambda x: (torch.empty(9, 9).exponential_(), x.clone().exponential_(lambd=3.0))),
    ("geometric_", lambda x: (torch.empty(9).geometric_(0.3), torch.empty(9, dtype=torch.int64).geometric_(p=1.0))),
    ("cauchy_", lambda x: torch.empty(9, dtype=torch.float64).cauchy_(1.0, sigma=0.5)),
    ("log_normal_", lambda x: torch.empty(9, 9).log_normal_(mean=0.5)),
    ("multinomial", lambda x: (torch.multinomial(x, 5), x[3].multinomial(9, True), torch.multinomial(x, 1))),
    ("randperm", lambda x: (torch.randperm(9), torch.randperm(5, dtype=torch.int32))),
    ("randint_like", lambda x: (torch.randint_like(x, 7), torch.randint_like(x, -3, high=3, dtype=torch.int64))),
    ("rrelu", lambda x: (F.rrelu(x - 0.5, training=True), F.rrelu(x - 0.5), F.rrelu(x - 1, 0.1, 0.2, True, True))),
    (
        "alpha_dropout",
        lambda x: (F.alpha_dropout(x, 0.4, True), F.alpha_dropout(x, 0.4), F.alpha_dropout(x, 1.0, True)),
    ),
    ("feature_alpha_dropout", lambda x: F.feature_alpha_dropout(x.view(4, 4, 16, 16), 0.5, True, inplace=True)),
    ("gumbel_softmax", lambda x: F.gumbel_softmax(x, hard=True)),
    ("distribution", lambda x: torch.distributions.Normal(x, 1.0).rsample()),
]


@pytest.mark.parametrize("draw", [d for _, d in DRAWS], ids=[n for n, _ in DRAWS])
def test_captures_draw_what_the_oracle_draws(draw: Callable[[Tensor], Any]) -> None:
    check_steps(draw, (X,), steps=2, tolerance=1e-6)


def under(seed: int, fn: Callable[[], Any]) -> Any:
    with counter_rng(seed):
        return fn()


def test_distributions() -> None:
    big = 200_000
    normal = under(1, lambda: torch.randn(big))
    assert abs(normal.mean()) < 0.01
    assert abs(normal.std() - 1) < 0.01
    assert abs((normal.abs() < 1).float().mean() - 0.6827) < 0.01
    integers = under(1, lambda: torch.randint(2, 6, (big,)))
    assert integers.unique().tolist() == [2, 3, 4, 5]
    assert abs(integers.float().mean() - 3.5) < 0.02
    for dtype in (torch.bfloat16, torch.float16):
        assert under(1, lambda dtype=dtype: torch.rand(big, dtype=dtype)).max() < 1


def test_distributions_of_logarithms_and_ratios() -> None:
    """At three points, the share of the numbers that are smaller is what the distribution function says."""
    big, points = 200_000, torch.tensor([0.5, 1.0, 3.0])
    for draw, shares in (
        (lambda x: x.exponential_(2.0), 1 - (-2 * points).exp()),
        (lambda x: x.cauchy_(0.5, 2.0), 0.5 + ((points - 0.5) / 2).atan() / math.pi),
        (lambda x: x.log_normal_(0.3, 0.8), torch.special.ndtr((points.log() - 0.3) / 0.8)),
        (lambda x: x.geometric_(0.3), 1 - 0.7 ** points.floor()),
    ):
        drawn = under(1, lambda draw=draw: draw(torch.empty(big)))
        torch.testing.assert_close((drawn[:, None] <= points).float().mean(0), shares, atol=0.005, rtol=0)
    mean, std = torch.full((big,), 3.0), torch.full((big,), 0.5)
    normal = under(1, lambda: torch.normal(mean, std))
    assert abs(normal.mean() - 3) < 0.01
    assert abs(normal.std() - 0.5) < 0.01


def test_choices() -> None:
    p = torch.tensor([[1.0, 0.0, 3.0, 4.0], [0.0, 0.0, 5.0, 5.0]])
    for again in (True, False):
        rows = p.repeat_interleave(5000, 0)
        chosen = under(1, lambda again=again, rows=rows: torch.multinomial(rows, 2, again))
        shares = F.one_hot(chosen[:, 0], 4).view(2, 5000, 4).float().mean(1)
        torch.testing.assert_close(shares, p / p.sum(1, keepdim=True), atol=0.02, rtol=0)
        assert bool((chosen[:, 0] != chosen[:, 1]).all()) != again
    order = under(1, lambda: torch.randperm(5000))
    assert torch.equal(order.sort()[0], torch.arange(5000))
    assert abs(torch.corrcoef(torch.stack([order.float(), torch.arange(5000.0)]))[0, 1]) < 0.06
    assert under(1, lambda: torch.randint_like(torch.empty(5000), 2, 5)).unique().tolist() == [2, 3, 4]


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = under(5, lambda: torch.randn(200_000))
    y = under(6, lambda: F.alpha_dropout(x, 0.3, training=True))
    assert abs(y.mean()) < 0.02
    assert abs(y.std() - 1) < 0.02
    channels = under(6, lambda: F.feature_alpha_dropout(torch.ones(8, 8, 3, 3), 0.5, training=True)).flatten(2)
    assert (channels == channels[..., :1]).all()
    slopes = under(6, lambda: F.rrelu(torch.full((5000,), -1.0), 0.1, 0.3, training=True))
    assert (-slopes).min() >= 0.1
    assert (-slopes).max() < 0.3
    assert abs(slopes.mean() + 0.2) < 0.01


def test_gradients_of_parameters_are_zero() -> None:
    def step(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(torch.normal(x, x.exp()).sum(), x)[0]

    assert torch.equal(step(X), torch.zeros_like(X))
    check_steps(step, (X,), steps=1)


def test_dropout_is_scaled_and_zero() -> None:
    y = under(3, lambda: F.dropout(X + 1, 0.25))
    kept = y != 0
    torch.testing.assert_close(y[kept], ((X + 1) / 0.75)[kept])
    assert abs(kept.float().mean() - 0.75) < 0.03
    channels = under(3, lambda: F.dropout2d(torch.ones(8, 8, 3, 3), 0.5)).flatten(2)
    assert ((channels == 0).all(-1) | (channels == 2).all(-1)).all()
    assert torch.equal(under(3, lambda: F.dropout(X, 1.0)), torch.zeros_like(X))
    with pytest.raises(ValueError, match="between 0 and 1"):
        under(3, lambda: torch.dropout(X, 1.5, True))


def test_seeds_and_order() -> None:
    def two() -> tuple[Tensor, Tensor]:
        return torch.rand(8), torch.rand(8)

    a, b = under(1, two)
    assert not torch.equal(a, b)
    assert torch.equal(a, under(1, two)[0])
    assert not torch.equal(a, under(2, two)[0])
    state = torch.get_rng_state()
    under(1, two)
    assert torch.equal(torch.get_rng_state(), state)


def test_recomputed_regions_draw_again_what_they_drew() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = x.detach().requires_grad_()
        y = checkpoint(lambda x: F.dropout(x.sin(), 0.5).exp(), x, use_reentrant=False)
        F.dropout(y, 0.5).sum().backward()
        return y, x.grad

    with counter_rng(4):
        y, grad = f(X)
    torch.testing.assert_close(grad != 0, (y != 1) & (grad != 0))
    check_steps(f, (X,), steps=2)
    numbers = [n.args[1] for n in capture(f, (X,)).graph.graph.nodes if n.target is philox_uniform]
    assert numbers == [0, 1, 0]


def test_each_call_of_a_program_has_its_seed() -> None:
    replay = Replay(lambda x: torch.rand_like(x))
    draws = [replay(X, seed=s) for s in (1, 2, 1)]
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[1])
    assert len(replay.captures) == 1


def test_the_oracle_refuses_what_a_capture_refuses() -> None:
    with pytest.raises(CaptureError, match="no counter-based form"), counter_rng(0):
        torch.poisson(X)


@pytest.mark.parametrize("seed", [2**63 + 5, 2**64 - 1, -1])
def test_seeds_fill_64_bits(seed: int) -> None:
    """Where nobody has set one, torch's is any."""
    mesh = samite.mesh("cpu", dp=2, engine="lockstep")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        compiled = samite.compile(lambda x: x + torch.rand(3), mesh=mesh)
        with counter_rng():
            expected = torch.zeros(3) + torch.rand(3)
        assert torch.equal(compiled(torch.zeros(3)).clone(), expected)
        assert samite.compile(lambda x: x + 1, mesh=mesh)(torch.zeros(3)).sum().item() == 3
        assert not torch.equal(compiled(torch.zeros(3)).clone(), expected)
