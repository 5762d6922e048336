"""In-place programs, made functional: both ways agree with PyTorch, whatever is a view of what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from captures import check_steps
from samite.errors import CaptureError
from samite.frontend import capture, functionalizing

VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.t() if x.dim() == 2 else x.view(2, -1),
    lambda x: x[1:],
    lambda x: x[0] if x.dim() > 1 else x[:2],
    lambda x: x.detach(),
    lambda x: x.unsqueeze(0)[0],
    lambda x: x.chunk(2)[-1],
]
PURE: list[Callable[[Tensor], Tensor]] = [lambda x: x + 1, lambda x: x.sum(0, keepdim=True) * x, lambda x: x.clone()]
WRITES: list[Callable[[Tensor, Tensor], Any]] = [
    lambda x, y: x.mul_(2),
    lambda x, y: x.zero_(),
    lambda x, y: x.fill_(3),
    lambda x, y: x.add_(y.sum()),
    lambda x, y: x.copy_(y.mean()),
    lambda x, y: x.copy_(y.clone()) if x.shape == y.shape else x.sub_(1),
    lambda x, y: x.addcmul_(x, x, value=0.5),
    lambda x, y: x.masked_fill_(x > 2, 1),
]

Program = list[tuple[int, int, int, int]]
PROGRAMS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 7), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9
)


def interpreter(program: Program) -> Callable[..., Any]:
    """A function of two tensors that makes a new register by each instruction, or writes to an old one."""

    def run(a: Tensor, b: Tensor) -> list[Tensor]:
        registers = [a, b]
        for kind, op, x, y in program:
            first, second = registers[x % len(registers)], registers[y % len(registers)]
            if first.numel() < 2:
                continue
            if kind == 0:
                registers.append(VIEWS[op % len(VIEWS)](first))
            elif kind == 1:
                registers.append(PURE[op % len(PURE)](first))
            else:
                WRITES[op % len(WRITES)](first, second)
        return registers

    return run


def arguments() -> tuple[Tensor, Tensor]:
    return torch.arange(16.0).view(4, 4) / 8, torch.ones(4, 4)


@settings(max_examples=60)
@given(PROGRAMS)
def test_random_programs(program: Program) -> None:
    check_steps(interpreter(program), arguments(), steps=1)


@settings(max_examples=25)
@given(PROGRAMS)
def test_both_ways_agree(program: Program) -> None:
    args = arguments()
    graph = make_fx(lambda a, b: [*interpreter(program)(a, b), a, b], tracing_mode="fake")(*args)
    fakes = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
    here = functionalizing.functionalize(graph, fakes)(*arguments())
    by_trace = functionalizing.functionalize_by_trace(graph, fakes)(*arguments())
    for x, y in zip(here, by_trace, strict=True):
        torch.testing.assert_close(x, y)


@pytest.fixture
def no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("went the slow way")

    monkeypatch.setattr(functionalizing, "functionalize_by_trace", refuse)


def test_what_steps_do_is_undone_on_the_graph(no_trace: None) -> None:
    """Whole tensors, their transposes when nothing else of them is read, and writes in other dtypes and shapes."""

    def whole(x: Tensor, y: Tensor) -> Tensor:
        before = x.t()
        x.mul_(2).add_(y)
        return before + x

    def transposed(x: Tensor, y: Tensor) -> Tensor:
        grad = (x @ y).t()
        grad.detach().mul_(0.5)
        grad.add_(1)
        return grad

    def below(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x @ y
        z.mul_(2)
        grad = z.t()
        row = grad[0]
        grad.add_(1)
        return row, grad

    def promoted(x: Tensor, y: Tensor) -> Tensor:
        z = x.to(torch.bfloat16)
        z.add_(y)
        z.copy_(y[0])
        z.mul_(y.double())
        return z

    def integers(x: Tensor, y: Tensor) -> Tensor:
        z = (x > 1).long()
        z.add_(1)
        z.bitwise_and_(z)
        return z.gt_(0)

    def reshaped(x: Tensor, y: Tensor) -> Tensor:
        row = x[0] @ y  # torch squeezes the product in place
        return y.clone().unsqueeze_(0).mul_(2).squeeze_(0).t_().add_(row)

    def powers(x: Tensor, y: Tensor) -> Tensor:
        z = x + y
        z.pow_(2)
        return z.pow_(y).add_(1).polygamma_(1)

    for fn in (whole, transposed, below, promoted, integers, reshaped, powers):
        check_steps(fn, arguments(), steps=2, tolerance=1e-6)


def test_shapes_that_change_in_place(no_trace: None) -> None:
    """`matmul` with a vector squeezes its product so."""

    def reshaped(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = (x @ y).mul_(2)
        same = z.unsqueeze_(0)
        z.add_(1)
        z.transpose_(1, 2).squeeze_(0)
        return z, same

    for fn in (reshaped, lambda x, y: torch.nn.functional.linear(x[0], y)):
        check_steps(fn, arguments(), steps=1)


def test_shapes_that_change_in_place_beside_views() -> None:
    def viewed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x @ y
        row = z[1]
        z.unsqueeze_(0)
        z.mul_(2)
        return z, row

    def detached(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x @ y
        same = z.detach()
        same.unsqueeze_(0).mul_(2)
        return z, same

    for fn in (viewed, detached):
        check_steps(fn, arguments(), steps=1)


def test_an_argument_that_changes_its_shape() -> None:
    with pytest.raises(CaptureError, match=r"x changes its shape in place, \(4, 4\) to \(1, 4, 4\)"):
        capture(lambda x, y: x.unsqueeze_(0) + y, arguments())


def test_ops_that_are_taken_apart_are_so_in_place() -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        z = x + y
        z.addr_(x[0], y[1]).ldexp_(x.int()).renorm_(2, 0, 1.5)
        return z.masked_scatter_(y > 0.5, x)

    targets = {str(n.target) for n in capture(step, arguments()).graph.graph.nodes}
    assert not targets & {
        "aten.addr.default",
        "aten.ldexp.Tensor",
        "aten.renorm.default",
        "aten.masked_scatter.default",
    }
    check_steps(step, arguments(), steps=1)


def test_partial_writes_go_the_general_way() -> None:
    def rows(x: Tensor, y: Tensor) -> Tensor:
        x[1:3].mul_(y[0, 0])
        x[:, 0] = 7
        return x.sum()

    captured = capture(rows, arguments())
    assert not [n for n in captured.graph.graph.nodes if str(n.target).endswith("_.default")]
    assert [r.name for r in captured.results] == ["output", "x"]
    assert all(n.meta["custom"]["line"] for n in captured.graph.graph.nodes if n.op == "call_function")
    check_steps(rows, arguments(), steps=2)
