"""The form of captured graphs: functional, device-neutral, every op with its line, phase and forward op."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node
from torch.utils.checkpoint import checkpoint

import models
import samite
from captures import train_step
from models import CNN, GPT, MLP, Llama, batch, images
from samite.frontend import Capture, capture

aten = torch.ops.aten
TOKENS = batch(32, 2, 16)


def captured_step(model: nn.Module, data: tuple[Tensor, ...], steady: bool = True) -> Capture:
    optimizer = torch.optim.AdamW(model.parameters())
    if steady:
        train_step(model, optimizer, *data)
    return capture(train_step, (model, optimizer, *data))


def calls(captured: Capture) -> list[Node]:
    return [n for n in captured.graph.graph.nodes if n.op == "call_function"]


def targets(captured: Capture) -> set[str]:
    return {str(n.target).removeprefix("aten.") for n in calls(captured)}


def line_in(fn: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(fn)
    offsets = [i for i, line in enumerate(lines) if text in line]
    assert len(offsets) == 1, f"{len(offsets)} lines contain {text!r}"
    file = inspect.getsourcefile(fn)
    assert file is not None
    return f"tests/unit/{file.rpartition('/')[2]}:{first + offsets[0]}"


def test_whole_steps_are_functional_aten() -> None:
    for model, data in ((GPT(layers=1, dropout=0.1), TOKENS), (Llama(layers=1), TOKENS), (CNN(), images(2, 3, 8, 8))):
        captured = captured_step(model, data)
        nodes = list(captured.graph.graph.nodes)
        assert [n.op for n in nodes[: len(captured.arguments)]] == ["placeholder"] * len(captured.arguments)
        assert {n.op for n in nodes[len(captured.arguments) :]} == {"call_function", "output"}
        for node in nodes[:-1]:
            value = node.meta["val"]
            leaves = [v for v in torch.utils._pytree.tree_leaves(value) if v is not None]
            assert leaves
            assert all(isinstance(v, torch._subclasses.FakeTensor) for v in leaves)
        for node in calls(captured):
            assert "device" not in node.kwargs
            if isinstance(node.target, torch._ops.OpOverload):
                assert node.target.namespace in ("aten", "samite")
                assert not node.target._schema.is_mutable
        gone = {"detach.default", "alias.default", "mean.default", "mean.dim", "zeros_like.default"}
        assert not targets(captured) & gone
        assert len(nodes[-1].args[0]) == len(captured.results)
        used = set(nodes[-1].args[0])
        assert all(n.users or n in used for n in calls(captured)), "dead code"


def test_arguments_match_their_placeholders() -> None:
    captured = captured_step(GPT(layers=1), TOKENS)
    placeholders = captured.graph.graph.find_nodes(op="placeholder")
    for node, argument in zip(placeholders, captured.arguments, strict=True):
        assert tuple(node.meta["val"].shape) == argument.shape
        assert node.meta["val"].dtype == argument.dtype
    kinds = [a.kind for a in captured.arguments]
    assert kinds == sorted(kinds, key=["state", "scalar", "input", "rng"].index)
    owners = {a.name: a.owner for a in captured.arguments}
    assert owners["optimizer.blocks.0.up.weight.exp_avg"] == "model.blocks.0.up.weight"
    assert owners["model.blocks.0.up.weight"] == ""
    scalars = [(a.name, a.shape) for a in captured.arguments if a.kind == "scalar"]
    assert scalars == [("optimizer.param_groups.0.lr", ()), ("optimizer.param_groups.0.numbers", (5,))]


def test_results_of_first_and_steady_steps() -> None:
    first, steady = (captured_step(MLP(), (torch.randn(2, 16), torch.zeros(2).long()), s) for s in (False, True))
    assert first.results[0].name == steady.results[0].name == "output"
    created = [r for r in first.results if r.kind == "state" and r.argument < 0]
    assert {r.name.rpartition(".")[2] for r in created} == {"step", "exp_avg", "exp_avg_sq"}
    assert all(r.owner.startswith("model.") for r in created)
    for result in steady.results[1:]:
        assert steady.arguments[result.argument].name == result.name
    assert {r.name for r in first.results} == {r.name for r in steady.results}
    assert first.deleted == steady.deleted == ()


def test_unused_arguments_stay_and_unchanged_state_is_no_result() -> None:
    model = CNN().eval()
    with torch.no_grad():
        captured = capture(lambda m, x, unused: m(x), (model, torch.randn(1, 3, 8, 8), torch.ones(2)))
    assert [r.kind for r in captured.results] == ["output"]
    assert captured.arguments[-1].name == "unused"
    assert not captured.graph.graph.find_nodes(op="placeholder")[-1].users


def test_seed_only_where_it_is_used() -> None:
    model, x = nn.Dropout(0.5), torch.ones(3)
    assert [a.kind for a in capture(model, (x,)).arguments] == ["input", "rng"]
    assert [a.kind for a in capture(model.eval(), (x,)).arguments] == ["input"]


def test_no_hyper_parameters_in_the_graph() -> None:
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.12345, momentum=0.54321)
    captured = capture(train_step, (model, optimizer, torch.randn(2, 16), torch.zeros(2).long()))
    assert not {"0.12345", "0.54321"} & set(captured.graph.code.replace(",", " ").split())
    assert captured.arguments[7].name == "optimizer.param_groups.0.numbers"
    assert len(captured.graph.graph.find_nodes(op="placeholder")[7].users) == len(list(model.parameters()))


def test_mean_losses_are_sums_over_global_counts() -> None:
    captured = capture(lambda x: x.mean() + F.mse_loss(x, x * 2) + x.mean(0).sum() + x.var(), (torch.randn(4, 6),))
    elementwise = {f"{op}.Tensor" for op in ("add", "sub", "mul", "div")} | {"pow.Tensor_Scalar"}
    assert targets(captured) - elementwise <= {"sum.default", "sum.dim_IntList", "view.default"}


def test_batch_statistics_are_sums() -> None:
    captured = captured_step(CNN(), images(2, 3, 8, 8))
    assert not [t for t in targets(captured) if "batch_norm" in t or "var_mean" in t]


def test_attention_is_one_op_each_way() -> None:
    captured = captured_step(GPT(layers=3), TOKENS)
    names = [str(n.target) for n in calls(captured)]
    assert names.count("samite.sdpa.default") == names.count("samite.sdpa_backward.default") == 3


@pytest.mark.parametrize("train", [True, False])
def test_attention_within_torchs_own_layers(train: bool) -> None:
    x = torch.randn(2, 3, 8)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).train(train)
    ops = targets(capture(lambda m, x: m(x, x, x, need_weights=False), (attention, x)))
    assert "samite.sdpa.default" in ops
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).train(train)
    ops = targets(capture(encoder, (x,)))
    assert ("samite.sdpa.default" in ops) != train  # in training its dropout is within the softmax
    assert ("samite.philox_uniform.default" in ops) == train


@pytest.mark.parametrize("model", [GPT(), Llama(), GPT(tie=True, dropout=0.1)], ids=["gpt", "llama", "tied"])
def test_every_op_has_a_line_a_phase_and_a_number(model: nn.Module) -> None:
    nodes = calls(captured_step(model, TOKENS))
    marks = [n.meta["custom"] for n in nodes]
    assert sum(bool(m["line"]) for m in marks) >= 0.99 * len(marks)
    phases = [m["phase"] for m in marks]
    assert set(phases) == {"forward", "backward", "update"}
    assert phases == sorted(phases, key=["forward", "backward", "update"].index)
    forward = [m["op"] for m in marks if m["phase"] == "forward"]
    assert forward == sorted(forward)
    assert forward[0] >= 0
    assert {m["op"] for m in marks if m["phase"] == "update"} == {-1}
    backward = [m["op"] for m in marks if m["phase"] == "backward"]
    assert sum(op >= 0 for op in backward) >= 0.95 * len(backward)
    assert max(backward) <= max(forward)


def test_backward_ops_have_the_line_of_the_forward() -> None:
    nodes = calls(captured_step(GPT(layers=1), TOKENS))
    place = line_in(models.Block.forward, "self.up(")

    def phases(target: Any) -> set[str]:
        return {n.meta["custom"]["phase"] for n in nodes if n.target is target and n.meta["custom"]["line"] == place}

    assert phases(aten.gelu.default) == {"forward"}
    assert phases(aten.gelu_backward.default) == {"backward"}
    assert phases(aten.mm.default) == {"backward"}
    assert phases(aten.addmm.default) == {"forward"}
    for forward, backward in (
        (aten.gelu.default, aten.gelu_backward.default),
        (torch.ops.samite.sdpa.default, torch.ops.samite.sdpa_backward.default),
    ):
        numbers = [[n.meta["custom"]["op"] for n in nodes if n.target is op] for op in (forward, backward)]
        assert numbers[0] == numbers[1] != []


def test_lines_of_the_update() -> None:
    nodes = calls(captured_step(MLP(), (torch.randn(2, 16), torch.zeros(2).long())))
    lines = {n.meta["custom"]["line"] for n in nodes if n.meta["custom"]["phase"] == "update"}
    assert lines == {line_in(train_step, "optimizer.step()")}


def test_clipping_is_update_and_a_second_forward_is_not() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        model(x, y).backward()  # first
        model(x + 1, y).backward()  # second
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # clip
        optimizer.step()

    model = MLP()
    args = (model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 16), torch.zeros(2).long())
    nodes = calls(capture(step, args))
    by_line = {m["line"]: m["phase"] for m in (n.meta["custom"] for n in nodes)}
    assert by_line[line_in(step, "# clip")] == "update"
    assert [n.meta["custom"]["phase"] for n in nodes if n.target is aten.relu.default] == ["forward"] * 4


def test_recomputed_ops_carry_the_number_of_the_op_they_repeat() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

        def block(self, layer: nn.Module, x: Tensor) -> Tensor:
            return torch.tanh(layer(torch.tanh(x)))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(self.block, layer, x, use_reentrant=False)
            return x.sum()

    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nodes = calls(capture(train_step, (model, optimizer, torch.randn(2, 8, requires_grad=True))))
    tanh = [n.meta["custom"] for n in nodes if n.target is aten.tanh.default]
    forward = [m["op"] for m in tanh if m["phase"] == "forward"]
    again = [m["op"] for m in tanh if m["phase"] == "backward"]
    assert len(forward) == 6
    assert sorted(again) == sorted(forward)
    # Regions run again from the last to the first, each in its own order.
    assert again == [*forward[4:], *forward[2:4], *forward[:2]]
    addmm: dict[str, list[int]] = {"forward": [], "backward": []}
    for mark in (n.meta["custom"] for n in nodes if n.target is aten.addmm.default):
        addmm[mark["phase"]].append(mark["op"])
    assert addmm["backward"] == addmm["forward"][::-1]


def test_files_below_the_working_directory_are_relative(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train" / "loss.py"
    script.parent.mkdir()
    script.write_text("def f(x):\n    return x + 1\n")
    scope: dict[str, Any] = {}
    exec(compile(script.read_text(), str(script), "exec"), scope)
    cases = {tmp_path: "train/loss.py:2", tmp_path / "train": "loss.py:2", "/": f"{str(script)[1:]}:2"}
    for where, name in cases.items():
        monkeypatch.chdir(where)
        (node,) = calls(capture(scope["f"], (torch.ones(2),)))
        assert node.meta["custom"]["line"] == name
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (node,) = calls(capture(scope["f"], (torch.ones(2),)))
    assert node.meta["custom"]["line"] == "loss.py:2"


def test_literals_of_one_element_become_full() -> None:
    captured = capture(lambda x: x * torch.tensor(0.5) + torch.tensor([1.0, 2.0]), (torch.ones(2),))
    assert [n.op for n in captured.graph.graph.nodes].count("get_attr") == 1
    assert "full.default" in targets(captured)


def test_float64_models_keep_their_precision() -> None:
    model = MLP().double()
    captured = captured_step(model, (torch.randn(2, 16).double(), torch.zeros(2).long()))
    assert [a.dtype for a in captured.arguments if a.kind == "scalar"] == [torch.float64] * 2


def test_a_constant_that_forward_and_backward_both_read_is_one_value() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        picked = x.index_select(0, torch.tensor([2, 0]))
        return torch.autograd.grad(picked.square().sum(), [x])[0]

    x = torch.randn(3, 2, requires_grad=True)
    mesh = samite.mesh("cpu", engine="lockstep", dp=2)
    compiled = samite.compile(twice, mesh=mesh, placements={"x": {"dp": samite.Shard(0)}})
    torch.testing.assert_close(compiled(x).clone(), twice(x))
