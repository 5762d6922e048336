"""Control flow in captured functions: branches, loops and scans, laid out over meshes, against the same Python run
plainly on one device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._higher_order_ops as higher
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.map import map as torch_map

import control_flows as flows
import samite
from control_flows import Layers, agree, plainly, train
from samite import Shard
from samite.errors import CaptureError
from samite.ir.module import Module
from samite.passes.traffic import collectives
from samite.report import describe

S = Shard
FUNCTIONS = [
    flows.branch,
    flows.nested,
    flows.returned,
    flows.halved,
    flows.power,
    flows.recurrent,
    flows.backwards,
    flows.mapped,
    flows.checkpointed,
    flows.straight_through,
    flows.written,
]
PLACEMENTS: list[Any] = [
    {},
    {"x": {"dp": S(0)}},
    {"x": {"dp": S(1)}},
    {"w": {"tp": S(1)}, "x": {"dp": S(0)}},
    {"w": {"tp": S(0)}, "x": {"tp": S(1), "dp": S(0)}},
    {"x": {"dp": S(0), "tp": S(0)}, "w": {"dp": S(1), "tp": S(0)}},
]


@pytest.mark.parametrize("placements", PLACEMENTS, ids=range(len(PLACEMENTS)))
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_as_plain_python(function: Callable[..., Any], placements: Any) -> None:
    """Called twice, so that each branch is taken by one program."""
    torch.manual_seed(0)
    x, w = torch.rand(5, 6), torch.randn(6, 6) * 0.4  # 5 rows on 2 × 2 ranks: uneven, and one is empty
    step = samite.compile(function, mesh=samite.mesh("cpu", dp=2, tp=2, engine="lockstep"), placements=placements)
    for given in (x, -x):
        here, there = (w.clone().requires_grad_() for _ in range(2))
        agree(step(given, there), plainly(function, given, here))
        if there.grad is not None:
            agree(there.grad, here.grad)
        else:
            assert here.grad is None


SPLITS: list[tuple[dict[str, int], Any]] = [
    ({"dp": 2}, {"x": {"dp": S(0)}, "y": {"dp": S(0)}}),
    ({"tp": 2}, {"model.up": {"tp": S(2)}, "model.down": {"tp": S(1)}}),
    ({"dp": 3, "tp": 2}, {"[xy]": {"dp": S(0)}, "model.up": {"tp": S(2)}, "model.down": {"tp": S(1)}}),
    ({"fs": 3}, {"model.up": {"fs": S(0)}, "model.down": {"fs": S(0)}}),
]


@pytest.mark.parametrize(("axes", "placements"), SPLITS, ids=["data", "tensor", "both", "stored apart"])
def test_layers_train(axes: dict[str, int], placements: Any) -> None:
    torch.manual_seed(0)
    model, x, y = Layers(), torch.randn(8, 6), torch.randn(8, 6)
    alone = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, alone)]
    step = samite.compile(train, mesh=samite.mesh("cpu", **axes, engine="lockstep"), placements=placements)
    for _ in range(3):
        agree(step(model, optimizers[0], x, y), plainly(train, alone, optimizers[1], x, y))
    for have, want in zip(model.parameters(), alone.parameters(), strict=True):
        agree(have, want)


def lowered(function: Callable[..., Any], axes: dict[str, int], placements: Any, *args: Any) -> Any:
    mesh = samite.mesh("cpu", **axes, engine="lockstep")
    _, built = samite.compile(function, mesh=mesh, placements=placements).lower(*args)
    return built


def found(built: Any) -> list[tuple[str, tuple[str, ...], int]]:
    module = Module.parse(built.program.module)
    return [(c.verb, c.inside, c.times) for c in collectives(module.graph, module.mesh)]


def test_tensor_parallel_layers_reduce_once_each_way() -> None:
    """As Megatron does: in each iteration once forward, once backward; weights' gradients stay where they are."""
    model, x, y = Layers(), torch.randn(8, 6), torch.randn(8, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    built = lowered(train, *SPLITS[1], model, optimizer, x, y)
    inside = [(verb, times) for verb, where, times in found(built) if where == ("scan",)]
    assert inside == [("all_reduce", 3), ("all_reduce", 3)]


def test_sums_over_iterations_are_reduced_after_the_loop() -> None:
    """What a scan adds up from terms of all ranks is carried as it is, and settled once."""
    x, w = torch.randn(4, 6, 6), torch.randn(6, 6).requires_grad_()

    def step(x: Tensor, w: Tensor) -> Tensor:
        loss, _ = flows.ops.scan(lambda c, part: (c + (part @ w).square().sum(), c * 0), torch.zeros(()), x)
        loss.backward()
        return loss

    built = lowered(step, {"dp": 2}, {"x": {"dp": S(1)}}, x, w)
    verbs = found(built)
    assert verbs
    assert all(where == () for _, where, _ in verbs)


def test_weights_are_not_stacked() -> None:
    """The backward scan needs the weight transposed, which no iteration changes."""
    x, w = torch.rand(5, 6), torch.randn(6, 6).requires_grad_()
    graph = Module.parse(lowered(flows.recurrent, {"dp": 2}, {}, x, w).program.module).graph
    assert [node.op.name for node in graph.nodes].count("dist.scan") == 2
    assert all(len(type.shape) < 3 or 1 in type.shape for type in graph.types)


def test_a_map_that_looks_at_nothing() -> None:
    step = samite.compile(
        lambda x, w: torch_map(lambda row, weight: weight @ weight, x, w),
        mesh=samite.mesh("cpu", dp=2, engine="lockstep"),
        placements={"w": {"dp": S(0)}},
    )
    x, w = torch.randn(3, 2), torch.randn(4, 4)
    agree(step(x, w), (w @ w).expand(3, 4, 4))


def test_iterations_of_a_map_are_split() -> None:
    x, w = torch.randn(4, 3, 6), torch.randn(6, 6).requires_grad_()
    built = lowered(flows.mapped, {"dp": 2}, {"x": {"dp": S(0)}}, x, w)
    assert found(built) == [("all_reduce", (), 1)]
    assert str(built.program.results[0].layout) == "[4:dp, 3, 6]"


def test_the_report_counts_iterations() -> None:
    model, x, y = Layers(), torch.randn(8, 6), torch.randn(8, 6)
    built = lowered(train, *SPLITS[1], model, torch.optim.SGD(model.parameters(), lr=0.1), x, y)
    rows = [row for row in describe(built).collectives if row.inside]
    assert {(row.verb, row.count, row.phase) for row in rows} == {
        ("all_reduce", 3, "forward"),
        ("all_reduce", 3, "backward"),
    }
    assert all("control_flows.py" in row.line for row in rows)


def test_text_and_bytecode_keep_regions() -> None:
    x, w = torch.randn(4, 6), torch.randn(6, 6).requires_grad_()
    for function in (flows.nested, flows.halved, flows.recurrent):
        module = Module.parse(lowered(function, {"dp": 2}, {"x": {"dp": S(0)}}, x, w).program.module)
        module.verify()
        for again in (Module.parse(module.text()), Module.parse(module.bytecode())):
            assert again.text() == module.text()
            assert str(again.graph.nodes[-1].op.regions) == str(module.graph.nodes[-1].op.regions)


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, self.norm, lambda a: a.clone(), (x,))


REFUSED: list[tuple[Callable[[Tensor], Any], str, str]] = [
    (lambda x: torch.cond(x.sum() > 0, lambda a: a, lambda a: a[0], (x,)), "float32[6]", "same shapes"),
    (lambda x: torch.cond(x.sum(), lambda a: a, lambda a: a, (x,)), "predicate is a torch.float32", "one bool"),
    (lambda x: torch.cond(x.sum() > 0, lambda a: F.dropout(a), lambda a: a, (x,)), "inside cond", "draw them before"),
    (lambda x: torch.cond(x.sum() > 0, lambda a: a.add_(1), lambda a: a, (x,)), "in place", "new value"),
    (lambda x: torch.cond(x.sum() > 0, lambda: x.mul_(2), lambda: x), "in place", "new value"),
    (lambda x: higher.while_loop(lambda a: a.sum() > 0, lambda a: (a[0],), (x,)), "body of while_loop", "same"),
    (lambda x: higher.while_loop(lambda a: a > 0, lambda a: (a,), (x,)), "condition gives one bool", ""),
    (lambda x: higher.while_loop(lambda a: a.sum() > 0, lambda a: (a,), (x.requires_grad_(),)), "gradients", "scan"),
    (lambda x: higher.scan(lambda c, part: (c.sum(), part), x[0], x), "function of scan", "same"),
    (Stateful(), "in place", "BatchNorm"),
]


@pytest.mark.parametrize(("function", "what", "help"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(function: Callable[[Tensor], Any], what: str, help: str) -> None:
    step = samite.compile(function, mesh=samite.mesh("cpu", dp=2, engine="lockstep"), placements={})
    with pytest.raises(CaptureError) as raised:
        step(torch.ones(4, 6))
    assert what in raised.value.what
    assert help in raised.value.help
    assert "test_control_flow.py" in raised.value.where


def test_torchs_own_words_need_no_data() -> None:
    step = samite.compile(
        lambda x: torch.cond(x > 0, lambda a: a, lambda a: a, (x,)), mesh=samite.mesh("cpu", dp=2, engine="lockstep")
    )
    with pytest.raises(RuntimeError, match=r"single-element tensor, but got a torch.bool of shape \(4, 6\)"):
        step(torch.ones(4, 6))


def test_a_python_bool_chooses_a_branch_by_itself() -> None:
    step = samite.compile(
        lambda x, flag: torch.cond(flag, lambda a: a * 2, lambda a: a * 3, (x,)),
        mesh=samite.mesh("cpu", dp=2, engine="lockstep"),
        placements={"x": {"dp": S(0)}},
    )
    x = torch.randn(4, 6)
    agree(step(x, True), x * 2)
    agree(step(x, False), x * 3)


def test_sizes_change() -> None:
    step = samite.compile(
        flows.recurrent, mesh=samite.mesh("cpu", dp=2, engine="lockstep"), placements={"x": {"dp": S(1)}}
    )
    w = torch.randn(6, 6) * 0.4
    for rows in (3, 5, 4, 5):
        x = torch.randn(rows, 6)
        here, there = (w.clone().requires_grad_() for _ in range(2))
        agree(step(x, there), plainly(flows.recurrent, x, here))
        agree(there.grad, here.grad)
