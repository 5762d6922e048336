"""The tables of rules: every rule is tried on shards, every op of a training step has one, mistakes are found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from captures import train_step
from models import CNN, GPT, MLP, Llama, batch, images
from samite.errors import RuleError
from samite.frontend import capture
from samite.ir.build import Builder
from samite.ir.context import TensorType
from samite.ir.graph import Argument
from samite.ir.importer import import_graph, trace
from samite.ir.module import Module
from samite.layout import Layout
from samite.mesh import Mesh
from samite.passes import fragments
from samite.passes.normalise import Normalise
from samite.passes.partition import Partition
from samite.passes.place import Place
from samite.passes.traffic import collectives
from samite.rules import Rule, language, rule, rules
from samite.rules.binding import bind
from samite.testing.rulecheck import Report, Sample, bools, check_rules, floats, ints
from samite.testing.rulecheck.samples import all_samples

UNSAMPLED = {"vtensor.literal", "prim.NumToTensor.Scalar"}
"""What only an importer makes of a constant. Nothing of it can be split."""
if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm_v2", "CPU"):
    UNSAMPLED |= {"aten._scaled_mm_v2"}
PARTS = 8
FEW = 3
"""Samples of an op that are tried in every run. The slow test tries all."""


def names(part: int) -> list[str]:
    return sorted(all_samples())[part::PARTS]


def test_every_rule_has_samples_and_every_sample_a_rule() -> None:
    assert set(rules()) - set(all_samples()) == UNSAMPLED
    assert set(all_samples()) <= set(rules())


@pytest.mark.parametrize("part", range(PARTS))
def test_every_rule_on_shards(part: int) -> None:
    few = {name: all_samples()[name][:FEW] for name in names(part)}
    report = check_rules(few, samples=few, limit=3, gradients=False, missing=False)
    assert report.ok, report
    assert set(report.ops) == set(few)
    assert all(checked.trials for checked in report.ops.values())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_rule_on_all_samples(part: int) -> None:
    report = check_rules(names(part), limit=24)
    assert report.ok, report


GRADIENTS = """
    mm bmm addmm mul.Tensor div.Tensor where.self sum.dim_IntList amax _softmax _log_softmax logsumexp cumsum embedding
    index_select gather index.Tensor native_layer_norm convolution max_pool2d_with_indices gelu silu view transpose.int
    expand split.Tensor cat slice.Tensor select.int
"""


@pytest.mark.parametrize("name", [*(f"aten.{name}" for name in GRADIENTS.split()), "samite.sdpa"])
def test_gradients_on_shards(name: str) -> None:
    one = {name: all_samples()[name][:1]}
    report = check_rules([name], meshes=({"a": 2}, {"a": 2, "b": 2}), samples=one, limit=1, missing=False)
    assert report.ok, report
    assert report.ops[name].gradients


# ---- models -----------------------------------------------------------------------------------------


def ops_of(model: nn.Module, optimizer: Callable[..., Optimizer], *data: torch.Tensor) -> set[str]:
    captured = capture(train_step, (model, optimizer(model.parameters()), *data))
    module = Normalise().run(import_graph(captured.graph.graph))
    return {node.op.name for node in module.graph.nodes}


def adamw(parameters: Iterator[nn.Parameter]) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, amsgrad=True, weight_decay=0.1)


@pytest.mark.parametrize(
    "model, data",
    [
        (lambda: GPT(layers=1, dropout=0.1), batch(32, 2, 16)),
        (lambda: GPT(layers=1, fused_qkv=False, tie=True), batch(32, 2, 16)),
        (lambda: Llama(layers=1), batch(32, 2, 16)),
        (lambda: Llama(layers=1, kv_heads=4), batch(32, 2, 16)),
        (lambda: MLP(), (torch.randn(4, 16), torch.zeros(4, dtype=torch.int64))),
        (lambda: CNN(), images(4, 3, 8, 8)),
    ],
    ids=["gpt", "gpt-tied", "llama", "llama-full", "mlp", "cnn"],
)
def test_every_op_of_a_training_step_has_a_rule(
    model: Callable[[], nn.Module], data: tuple[torch.Tensor, torch.Tensor]
) -> None:
    assert ops_of(model(), adamw, *data) - set(rules()) == set()


OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (torch.optim.Adagrad, {"weight_decay": 0.1}),
    (torch.optim.Adadelta, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    (torch.optim.ASGD, {}),
]


@pytest.mark.parametrize("optimizer, options", OPTIMIZERS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_op_of_an_optimizer_has_a_rule(optimizer: Any, options: dict[str, Any]) -> None:
    model = nn.Linear(4, 3)
    data = torch.randn(5, 4), torch.zeros(5, dtype=torch.int64)

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = model

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.linear(x), labels)

    assert ops_of(Classifier(), lambda p: optimizer(p, lr=1e-2, **options), *data) - set(rules()) == set()


def collectives_of(function: Callable[..., Any], mesh: dict[str, int], *layouts: str) -> list[str]:
    """The collectives of a function whose arguments are laid out so."""
    types = [TensorType(Layout.parse(text).shape, "float32") for text in layouts]
    module = Module.empty(Mesh(tuple(mesh), tuple(mesh.values())))
    arguments = [Argument(t, f"x{i}", text) for i, (t, text) in enumerate(zip(types, layouts, strict=True))]
    with Builder(module, "main", arguments) as build:
        build.finish(build.inline(trace(function, types), build.arguments))
    local = Partition().run(Place().run(module))
    return [c.verb for c in collectives(local.graph, local.mesh)]


def test_a_fused_qkv_splits_without_communication() -> None:
    def qkv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
        return list((x @ weight.t() + bias).split(8, -1))

    assert collectives_of(qkv, {"tp": 2}, "[4, 8]", "[(3 8:tp), 8]", "[(3 8:tp)]") == []


def test_grouped_heads_of_a_fused_projection_split_without_communication() -> None:
    def projections(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        return list((x @ weight.t()).split([16, 8, 8], -1))

    assert collectives_of(projections, {"tp": 2}, "[4, 8]", "[(4 8:tp), 8]") == []


def test_rotary_halves_of_split_heads_need_no_communication() -> None:
    def rotate(x: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return torch.cat([left * cos, right * cos], -1)

    assert collectives_of(rotate, {"tp": 2, "dp": 2}, "[4:dp, 2:tp, 3, 8]", "[3, 4]") == []


# ---- the checker ------------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Rule]]:
    """The registry of rules, to change."""
    changed = dict(rules())
    monkeypatch.setattr(language, "_rules", changed)
    yield changed
    forget()


def forget() -> None:
    """What was derived from rules is kept by op."""
    bind.cache_clear()
    fragments.local_op.cache_clear()


MISTAKES: dict[str, tuple[str, dict[str, Any]]] = {
    "a sum taken for elementwise": ("cumsum", {"plain": "", "expand": {}}),
    "a free dim that an op needs whole": ("sort", {"text": "*a d -> *a d, *a d"}),
    "a nonlinear op of a partial sum": ("relu", {"linear": "all"}),
    "both factors partial": ("mul.Tensor", {"linear": "all"}),
    "a bias that counts on every rank": ("addmm", {"linear": ""}),
    "the wrong reduction": ("amax", {"max": "", "sum": "r"}),
    "no masks": ("bmm", {"indexes": "k"}),
    "a literal that stays global": ("expand", {"local": None}),
    "indices of the whole table": ("embedding", {"local": None}),
    "padded indices": ("gather", {"padding": {}}),
    "padded divisors": ("floor_divide", {"padding": {}}),
    "a gradient that every rank has whole": ("convolution_backward", {"local": None}),
    "statistics of shards": (
        "native_layer_norm",
        {"text": "*a n, ?(n), ?(n) -> *a n, *a 1, *a 1", "sum": "n", "expand": {}},
    ),
    "a window without its halo": ("convolution", {"expand": {}}),
    "a scan of blocks": ("cumprod", {"expand": {}, "whole": ""}),
    "a largest element through what is not monotone": ("abs", {"increasing": "0"}),
    "rows that are not here": ("scatter_add", {"local": None}),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, registry: dict[str, Rule]) -> None:
    op, options = MISTAKES[mistake]
    name = f"aten.{op}"

    def check() -> Report:
        few = {name: all_samples()[name][:6]}
        return check_rules([name], ({"a": 2}, {"a": 3}), samples=few, limit=24, gradients=False, missing=False)

    right = check()
    assert right.ok, right
    registry[name] = dataclasses.replace(rules()[name], **options)
    forget()
    wrong = check()
    assert wrong.wrong, f"not found: {mistake}"
    with pytest.raises(RuleError, match=f"placements are wrong:\n\n{name}: .*\n  rule    "):
        wrong.raise_wrong()


def test_a_missing_placement_is_found(registry: dict[str, Rule]) -> None:
    registry["aten.neg"] = Rule("aten.neg", "m N -> m N")
    forget()
    sample = Sample("aten.neg", (floats(4, 6),))
    report = check_rules(["aten.neg"], samples={"aten.neg": [sample]}, gradients=False)
    assert report.ok
    found = {finding.placements for finding in report.missing}
    assert {"[_, a] -> [_, a]", "[_, _] sum -> [_, _] sum"} <= found
    assert "[a, _] -> [a, _]" not in found
    assert "missing: aten.neg: [_, a] -> [_, a]" in str(report)


def test_a_gradient_without_a_rule_is_found(registry: dict[str, Rule]) -> None:
    del registry["aten.silu_backward"]
    report = check_rules(["aten.silu"], meshes=({"a": 2},), limit=2)
    assert any("silu_backward: no sharding rule" in finding.problem for finding in report.wrong)


def test_rules_of_others_are_checked_too(registry: dict[str, Rule]) -> None:
    library = torch.library.Library("checked_rules", "DEF")
    library.define("scaled_rows(Tensor x, Tensor mask, float by) -> Tensor")
    library.impl("scaled_rows", lambda x, mask, by: torch.where(mask[:, None], x * by, x), "CompositeExplicitAutograd")
    name = "checked_rules.scaled_rows"
    samples = {name: [Sample(name, (floats(7, 4), bools(7), 0.5))]}
    with pytest.raises(RuleError, match=f"{name} has no rule"):
        check_rules([name], samples=samples)
    rule("checked_rules::scaled_rows", "m n, m -> m n", linear="0")
    with pytest.raises(RuleError, match=f"{name} has no sample"):
        check_rules([name])
    report = check_rules([name], samples=samples, gradients=False)
    assert report.ok, report
    assert f"{name} " in str(report)
    assert not [f for f in report.missing if " sum" in f.placements or f.placements.startswith("[a")]


def test_a_sample_that_becomes_another_op() -> None:
    with pytest.raises(RuleError, match=r"aten.mul.Tensor is imported as \['aten.mul.Scalar'\]"):
        check_rules(["aten.mul.Tensor"], samples={"aten.mul.Tensor": [Sample("aten.mul.Tensor", (floats(4), 2.0))]})


def test_samples_are_drawn_the_same_every_time() -> None:
    sample = Sample("aten.embedding", (floats(7, 4), ints(5, low=0, high=6)))
    first, again = (sample.draw(torch.Generator().manual_seed(1))[0] for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert str(sample) == "aten.embedding(float64[7, 4], int64[5])"
