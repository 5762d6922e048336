"""Halos: what windows fetch, and convolutions and pools of any geometry on shards of any length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samite.errors import RuleError
from samite.ir.build import Builder
from samite.ir.context import TensorType
from samite.ir.graph import Argument, overload
from samite.ir.module import Module
from samite.layout import Factor, Layout
from samite.mesh import Mesh
from samite.passes.partition import Partition
from samite.rules import Rule
from samite.rules.binding import bind
from samite.rules.planning import plan_op
from samite.rules.windows import Sliding
from samite.testing.rulecheck.sample import one_op, tensors_of
from samite.testing.rulecheck.trial import Case, run_case

MESHES = tuple(
    Mesh(tuple(axes), tuple(axes.values()))
    for axes in ({"a": 2}, {"a": 3}, {"a": 4}, {"a": 2, "b": 2}, {"a": 2, "b": 3})
)


@given(
    st.integers(1, 5), st.integers(1, 4), st.integers(0, 4), st.integers(1, 3), st.integers(0, 20), st.integers(1, 6)
)
def test_sliding(kernel: int, stride: int, padding: int, dilation: int, first: int, count: int) -> None:
    sliding = Sliding(kernel, stride, padding, dilation)

    def reads(output: int) -> list[int]:
        return [output * stride - padding + k * dilation for k in range(kernel)]

    outputs = range(first, first + count)
    read = [i for output in outputs for i in reads(output)]
    assert (min(read), max(read)) == (
        sliding.first_input(first),
        sliding.first_input(first) + sliding.inputs(count) - 1,
    )
    inputs = range(first, first + count)
    low, need = sliding.first_output(first), sliding.outputs([first], count)
    readers = [o for o in range(-30, 60) if set(reads(o)) & set(inputs)]
    assert all(low <= o < low + need for o in readers)
    # What a transposed convolution makes of those outputs has all of the inputs in it.
    assert 0 <= sliding.skipped(first) <= sliding.skipped(first) + count <= sliding.inputs(need)


def laid_out(shape: Sequence[int], mesh: Mesh, chance: random.Random) -> Layout:
    """Spatial dims split at random, by one axis or several."""
    dims = [(Factor(n),) for n in shape]
    for axis in chance.sample([*mesh], len(mesh)):
        dim = chance.randrange(min(1, len(shape) - 1), len(shape))
        if chance.random() < 0.9:
            dims[dim] = (Factor(shape[dim], (*dims[dim][0].axes, axis)),)
    return Layout(tuple(dims)).canonical(mesh)


def check(name: str, args: tuple[Any, ...], chance: random.Random) -> None:
    """The call, at one layout, gives what it gives whole."""
    tensors = tensors_of(args, {})
    expected = overload(name)(*args)
    wanted = list(expected) if isinstance(expected, tuple) else [expected]
    op, mesh = one_op(name, args, {}), chance.choice(MESHES)
    have = [laid_out(tensors[0].shape, mesh, chance)]
    for x in tensors[1:]:
        alike = x.dim() == tensors[0].dim() and chance.random() < 0.3
        have.append(laid_out(x.shape, mesh, chance) if alike else Layout.replicated(x.shape))
    made = plan_op(bind(op), have, mesh, [None] * len(wanted))
    case = Case(made.needs, made.results)
    problem = run_case(op, case, tensors, wanted, mesh, torch.Generator().manual_seed(0))
    assert not problem, f"{name} {dict(mesh)} {case}: {problem}"


SEEDS = st.integers(0, 1 << 30)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_convolutions(seed: int) -> None:
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    def draw(low: int, high: int) -> list[int]:
        return [chance.randint(low, high) for _ in range(spatial)]

    spatial, transposed, groups = chance.choice([1, 1, 2]), chance.random() < 0.4, chance.choice([1, 1, 2])
    kernel, stride, dilation, padding, before = draw(1, 5), draw(1, 4), draw(1, 2), draw(0, 4), draw(1, 12)
    room = [chance.randrange(max(s, d)) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    c, o = 2 * groups, groups
    x, bias = rand(2, c, *before), rand(o)
    weight = rand(*((c, o // groups) if transposed else (o, c // groups)), *kernel)
    geometry = (stride, padding, dilation, transposed, room, groups)
    try:
        y = torch.ops.aten.convolution(x, weight, bias, *geometry)
    except RuntimeError:
        return
    if not y.numel():
        return
    check("aten.convolution", (x, weight, bias, *geometry), chance)
    check("aten.convolution_backward", (rand(*y.shape), x, weight, [o], *geometry, [True] * 3), chance)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_pools(seed: int) -> None:
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    spatial = chance.choice([2, 2, 3])

    def draw(low: int, high: int) -> list[int]:
        return [chance.randint(low, high) for _ in range(spatial)]

    kernel, stride, dilation = draw(1, 4), draw(1, 4) if chance.random() < 0.8 else [], draw(1, 2)
    padding, ceil = [chance.randint(0, k // 2) for k in kernel], chance.random() < 0.4
    shape = (2, 2, *draw(1, 10))
    x = torch.rand(shape, generator=generator, dtype=torch.float64)
    if chance.random() < 0.5:
        x = (x * 4).floor()  # ties
    largest, average = f"aten.max_pool{spatial}d_with_indices", f"aten.avg_pool{spatial}d"
    grad = torch.rand(shape, generator=generator, dtype=torch.float64)
    dilated = chance.random() < 0.5
    name = largest if dilated else average
    arguments: tuple[Any, ...] = (x, kernel, stride, padding, dilation, ceil)
    if not dilated:
        arguments = (x, kernel, stride, padding, ceil, chance.random() < 0.5, chance.choice([None, 3]))
    try:
        y, *indices = overload(name)(*arguments) if dilated else (overload(name)(*arguments),)
    except RuntimeError:  # no window fits
        return
    if y.isfinite().all():  # of a window that sees nothing torch makes indices that are none
        check(name, arguments, chance)
        check(f"{name}_backward", (grad_of(y, grad), *arguments, *indices), chance)


def grad_of(y: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    return noise.flatten().repeat(y.numel() // max(noise.numel(), 1) + 1)[: y.numel()].view(y.shape)


def moved(chance: random.Random, generator: torch.Generator) -> tuple[str, tuple[Any, ...]]:
    """A slice, join, shift or window along dim 1, at random."""

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    n = chance.randint(1, 12)
    start, end, step = chance.randint(-n, n), chance.randint(-n, n), chance.randint(1, 3)
    size = chance.randint(1, n)
    part, windows = rand(2, n)[:, start:end:step], rand(2, n).unfold(1, size, step)
    match chance.randrange(9):
        case 0:
            return "aten.slice.Tensor", (rand(2, n), 1, start, end, step)
        case 1:
            return "aten.slice_backward", (rand(*part.shape), [2, n], 1, start, end, step)
        case 2:
            return "aten.slice_scatter", (rand(2, n), rand(*part.shape), 1, start, end, step)
        case 3:
            return "aten.cat", ([rand(2, chance.randint(0, 6)) for _ in range(chance.randint(1, 4))], 1)
        case 4:
            more = [chance.randint(-(n // 2), 4), chance.randint(-(n // 2) + (n == 1), 4)]
            return "aten.constant_pad_nd", (rand(2, n), more, chance.choice([0, 1.5]))
        case 5:
            return "aten.constant_pad_nd", (rand(2, n), [1, 2, chance.randint(-1, 1), 1])
        case 6:
            return "aten.roll", (
                rand(2, n, 3),
                [chance.randint(-9, 9), chance.randint(-3, 3)],
                [1, chance.choice([0, 2])],
            )
        case 7:
            return "aten.unfold", (rand(2, n), 1, size, step)
        case _:
            return "aten.unfold_backward", (rand(*windows.shape), [2, n], 1, size, step)


@settings(max_examples=120, deadline=None)
@given(SEEDS)
def test_moves(seed: int) -> None:
    chance = random.Random(seed)
    name, args = moved(chance, torch.Generator().manual_seed(seed))
    check(name, args, chance)


@pytest.mark.parametrize("size", range(2, 15))
def test_a_slice_of_the_end_begins_for_some_ranks_behind_it(size: int) -> None:
    chance = random.Random(size)
    for count in (1, 2):
        check("aten.slice.Tensor", (torch.rand(2, size), 1, size - count, size, 1), chance)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_resizes(seed: int) -> None:
    """With a scale of one's own, which says other than the sizes where places lie, or none."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    before, dtype = chance.randint(1, 14), chance.choice([torch.float32, torch.float64])
    scale = chance.uniform(0.3, 3.5) if chance.random() < 0.5 else None
    after = chance.randint(1, 20) if scale is None else max(int(before * scale), 1)
    x, grad = (torch.rand(2, 3, n, dtype=dtype, generator=generator) for n in (before, after))
    kind = chance.choice(["upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"])
    corners = (chance.random() < 0.5,) if "linear" in kind else ()
    check(f"aten.{kind}", (x, [after], *corners, scale), chance)
    check(f"aten.{kind}_backward", (grad, [after], [2, 3, before], *corners, scale), chance)


# ---- what is sent ----------------------------------------------------------------------------------


def exchanged(layout: str, kernel: int, stride: int, padding: int, mesh: dict[str, int]) -> list[tuple[str, int]]:
    """The collectives of a 1-d convolution of one channel, and the elements that each sends."""
    x = Layout.parse(layout)
    length = x.shape[-1]
    after = (length + 2 * padding - kernel) // stride + 1
    call = (torch.zeros(x.shape), torch.zeros(1, 1, kernel), None, [stride], [padding], [1], False, [0], 1)
    op = one_op("aten.convolution", call, {})
    made = plan_op(bind(op), [x, Layout.replicated((1, 1, kernel))], mesh)
    assert made.results[0].shape == (1, 1, after)
    module = Module.empty(Mesh(tuple(mesh), tuple(mesh.values())))
    arguments = [Argument(TensorType(need.shape, "float32"), layout=str(need)) for need in made.needs]
    with Builder(module, "main", arguments) as build:
        build.finish(build.op(op, build.arguments, op.results, layouts=[str(made.results[0])]))
    local = Partition().run(module).graph
    return [(n.op.name, n.op.operands[0].shape[-1]) for n in local.nodes if n.op.name in SENDING]


SENDING = ("dist.permute", "dist.all_gather", "dist.all_reduce")


def test_a_halo_is_as_wide_as_the_kernel_reaches() -> None:
    assert exchanged("[1, 1, 16:a]", 3, 1, 1, {"a": 4}) == [("dist.permute", 1)] * 2
    assert exchanged("[1, 1, 16:a]", 7, 1, 3, {"a": 2}) == [("dist.permute", 3)] * 2
    assert exchanged("[1, 1, 16:a.b]", 3, 1, 1, {"a": 2, "b": 2}) == [("dist.permute", 1)] * 2


def test_windows_that_end_with_the_shard_need_nothing() -> None:
    assert exchanged("[1, 1, 16:a]", 1, 1, 0, {"a": 4}) == []
    assert exchanged("[1, 1, 16:a]", 2, 2, 0, {"a": 4}) == []
    assert exchanged("[1, 1, 16:a]", 3, 2, 1, {"a": 4}) == [("dist.permute", 1)]


def test_a_kernel_over_everything_gathers() -> None:
    assert exchanged("[1, 1, 8:a]", 15, 1, 7, {"a": 4}) == [("dist.all_gather", 2)]


def test_axes_that_leave_holes_are_gathered_from_the_inside() -> None:
    """5 over 2 is 3 and 2; cut over 2 again, shards start at 0, 2, 3 and 5."""
    call = (torch.zeros(1, 1, 5), torch.zeros(1, 1, 1), None, [1], [0], [1], False, [0], 1)
    bound, mesh = bind(one_op("aten.convolution", call, {})), {"a": 2, "b": 2}
    made = plan_op(bound, [Layout.parse("[1, 1, 5:a.b]"), Layout.replicated((1, 1, 1))], mesh)
    assert [str(layout) for layout in (made.needs[0], made.results[0])] == ["[1, 1, 5:a]"] * 2


def test_the_letters_of_a_window_are_named() -> None:
    with pytest.raises(RuleError, match="z is in no term"):
        Rule("my.op", "n x -> n y", window="x z")
    with pytest.raises(RuleError, match="a window has two letters"):
        Rule("my.op", "n x -> n y", window="x y | n")
    assert Rule("my.op", "n x, n u -> n y", window="x u y").partners["u"] == ("x", "y")
