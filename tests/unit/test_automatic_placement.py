"""Placement by cost: what it finds where, that it computes what one device does, and what it says."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import control_flows
import samite
from lockstep_training import Batches, momentum, train_both, train_step
from models import GPT, batch
from samite import Shard
from samite.api.topology import configured_topology, measured_topology, read_topology
from samite.errors import ConfigError, PlacementError
from samite.frontend import capture
from samite.ir.importer import import_graph
from samite.ir.module import Module
from samite.layout import Layout, from_placements
from samite.passes.normalise import Normalise
from samite.passes.placement import Automatic, Decision, decide
from samite.runtime.session import session_of
from samite.topology import KINDS, DeviceSpec, Link, Topology

SLOW = {"flops": {"float32": 1e9}, "bandwidth": 1e10, "latency": 0.0}
"""A device for which the models of this file are large."""

FAST_LINKS = {"bandwidth": 1e10, "latency": 1e-6}


class MLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return (self.down(self.up(inputs).relu()) - targets).pow(2).mean()


class Scales(nn.Module):
    """Its second weight is used as it is both forward and backward."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.full((dim,), 0.5)), nn.Parameter(torch.full((dim,), 2.0))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return ((inputs * self.first).relu() * self.second - targets).pow(2).mean()


def vectors(size: int, dim: int) -> Batches:
    def draw(step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(step)
        return torch.randn(size, dim, generator=generator), torch.randn(size, dim, generator=generator)

    return draw


def tokens(size: int, block: int = 8) -> Batches:
    return lambda step: batch(32, size, block, seed=step)


def decided(
    model: nn.Module, batches: Batches, axes: dict[str, int], given: dict[str, Any] | None = None, **options: Any
) -> Decision:
    """What is decided for a steady training step."""
    optimizer = momentum(model.parameters())
    train_step(model, optimizer, *batches(0))
    captured = capture(train_step, (model, optimizer, *batches(0)))
    mesh = samite.mesh("cpu", engine="lockstep", **axes)
    names = [(a.name, a.owner) for a in captured.arguments]
    aliases = [r.argument for r in captured.results]
    graph = Normalise().run(import_graph(captured.graph.graph, arguments=names, aliases=aliases, mesh=mesh)).graph
    fixed: list[Layout | None] = [
        from_placements(a.type.shape, given[a.name], mesh) if given and a.name in given else None
        for a in graph.arguments
    ]
    return decide(graph, dict(mesh), fixed, Automatic(inputs=frozenset(("inputs", "targets")), **options))


def topology(link: dict[str, float] = FAST_LINKS, **links: dict[str, float]) -> Topology:
    return Topology.from_dict({"device": SLOW, "default": link, "links": links})


# ---- what is found -----------------------------------------------------------------------------------------------


def test_what_is_small_is_not_split() -> None:
    decision = decided(MLP(8, 16), vectors(4, 8), {"dp": 2})
    assert decision.chosen.name == "not split"
    assert len(decision.candidates) == 1, "nothing else need be looked at"


def test_what_links_are_too_slow_for_is_not_split() -> None:
    decision = decided(MLP(32, 64), vectors(8, 32), {"dp": 2}, topology=topology({"bandwidth": 1e4, "latency": 0.0}))
    assert decision.chosen.name == "not split"
    assert len(decision.candidates) == 4
    assert any("times as long" in line or "longer" in line for line in decision.in_words())


def test_large_batches_are_split() -> None:
    decision = decided(MLP(16, 32), vectors(1024, 16), {"dp": 4}, topology=topology())
    assert decision.chosen.name == "data parallel"
    assert decision.chosen.cost.seconds < decision.candidates[0].cost.seconds / 3


def test_large_weights_are_split() -> None:
    """Megatron's way: the columns of the first and the rows of the second, one reduction for both."""
    decision = decided(MLP(64, 256), vectors(1, 64), {"tp": 2}, topology=topology())
    found = {
        a.name: str(at)
        for a, at in zip(decision.chosen.cost.graph.arguments, decision.chosen.cost.arguments, strict=True)
    }
    assert found["model.up.weight"] == "[256:tp, 64]"
    assert found["model.down.weight"] == "[64, 256:tp]"
    assert "over tp the weights" in decision.in_words()[1]


def test_an_axis_may_split_the_batch_and_another_the_weights() -> None:
    """Either way what travels is half as much as if both split the same."""
    links = topology(dp={"bandwidth": 1e8, "latency": 0.0}, tp={"bandwidth": 1e9, "latency": 0.0})
    decision = decided(MLP(64, 256), vectors(512, 64), {"dp": 2, "tp": 2}, topology=links)
    assert decision.chosen.cost.seconds < decision.candidates[0].cost.seconds / 3
    dp, tp, *_ = decision.in_words()[1].removeprefix("over ").split("; ")
    assert {"the batch" in dp, "the batch" in tp} == {"the weights" in dp, "the weights" in tp} == {True, False}


def test_memory_shards_what_is_stored() -> None:
    model, batches = MLP(64, 256), vectors(256, 64)
    free = decided(model, batches, {"dp": 4}, topology=topology())
    assert free.chosen.name == "data parallel"
    limit = free.chosen.cost.peak.nbytes * 6 // 10
    capped = decided(MLP(64, 256), batches, {"dp": 4}, topology=topology(), memory=limit)
    assert capped.chosen.cost.peak.nbytes <= limit
    assert capped.chosen.cost.peak.state < free.chosen.cost.peak.state / 2
    assert any("more than a rank may hold" in line for line in capped.in_words())


def test_given_layouts_are_kept() -> None:
    given = {"model.up.weight": {"dp": Shard(1)}, "inputs": {}}
    decision = decided(MLP(16, 32), vectors(1024, 16), {"dp": 4}, given, topology=topology())
    for candidate in decision.candidates:
        found = dict(zip((a.name for a in candidate.cost.graph.arguments), candidate.cost.arguments, strict=True))
        assert str(found["model.up.weight"]) == "[32, 16:dp]"
        assert str(found["inputs"]) == "[1024, 16]"


def test_layers_are_placed_alike() -> None:
    """The program is no larger for more of them."""
    decision = decided(GPT(layers=4), tokens(8), {"dp": 2}, topology=topology())
    cost = decision.candidates[-1].cost
    found = dict(zip((a.name for a in cost.graph.arguments), cost.arguments, strict=True))
    for name in ("attention.qkv.weight", "up.weight", "down.weight"):
        assert found[f"model.blocks.1.{name}"] == found[f"model.blocks.2.{name}"]


# ---- what cannot be ----------------------------------------------------------------------------------------------


def test_memory_that_nothing_fits() -> None:
    with pytest.raises(PlacementError) as error:
        decided(MLP(64, 256), vectors(256, 64), {"dp": 2}, topology=topology(), memory=100_000)
    assert "100.0 kB a rank" in error.value.what
    assert "too much" in error.value.what
    assert "memory_per_rank" in error.value.help
    assert "test_automatic_placement.py" in error.value.where


# ---- executed ----------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "topology.json"
    file.write_text(json.dumps({"device": SLOW, "default": FAST_LINKS}))
    monkeypatch.setenv("SAMITE_TOPOLOGY", str(file))


@pytest.mark.usefixtures("slow_device")
@pytest.mark.parametrize("axes", [{"a": 2}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 2}], ids=["2", "4x2", "2x2x2"])
def test_a_gpt_trains_as_on_one_device(axes: dict[str, int]) -> None:
    train_both(GPT(layers=1, tie="b" in axes), tokens(8), axes, {}, steps=1)


@pytest.mark.usefixtures("slow_device")
@pytest.mark.parametrize("function", [control_flows.branch, control_flows.recurrent], ids=lambda f: f.__name__)
def test_control_flow(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Regions are placed on their own, and priced as often as they run."""
    torch.manual_seed(0)
    x, w = torch.rand(8, 6), torch.randn(6, 6) * 0.4
    step = samite.compile(function, mesh=samite.mesh("cpu", dp=2, engine="lockstep"))
    here, there = (w.clone().requires_grad_() for _ in range(2))
    control_flows.agree(step(x, there), control_flows.plainly(function, x, here))


@pytest.mark.usefixtures("slow_device")
def test_uneven_batches() -> None:
    train_both(MLP(8, 32), vectors(65, 8), {"a": 2, "b": 2}, {}, steps=2)


@pytest.mark.usefixtures("slow_device")
def test_the_step_that_creates_state_decides() -> None:
    """The next one takes the state as it lies."""
    train_both(MLP(8, 32), vectors(64, 8), {"a": 2}, {}, warm=False)


@pytest.mark.usefixtures("slow_device")
def test_parameters_are_gathered_just_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a gathered parameter is not to be kept from the forward to the backward pass."""
    model, batches = Scales(64), vectors(1024, 64)
    peaks: list[int] = []

    def anew(*arguments: Any) -> Decision:
        decision = decide(*arguments)
        (sharded,) = (c for c in decision.candidates if c.name == "fully sharded")
        again = sharded.cost.copying_again()
        peaks.extend((sharded.cost.peak.nbytes, again.peak.nbytes))
        return replace(decision, chosen=replace(sharded, placement=again, cost=again))

    monkeypatch.setattr("samite.passes.place.decide", anew)
    optimizer = momentum(model.parameters())
    train_step(model, optimizer, *batches(0))
    compiled = samite.compile(train_step, mesh=samite.mesh("cpu", engine="lockstep", dp=4))
    _, built = compiled.lower(model, optimizer, *batches(0))
    gathers = [
        (node.operands[0], node.source.phase)
        for node in Module.parse(built.program.module).graph.nodes
        if node.op.name == "dist.all_gather"
    ]
    assert len(set(gathers)) > len({operand for operand, _ in gathers}), "none is gathered twice"
    assert len(set(gathers)) == len(gathers), "one is gathered twice in one phase"
    assert peaks[1] <= peaks[0]
    train_both(Scales(64), batches, {"dp": 4}, {}, steps=2)


@pytest.mark.usefixtures("slow_device")
def test_the_choice_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    compiled = samite.compile(lambda x: (x @ x).relu(), mesh=samite.mesh("cpu", engine="lockstep", a=2))
    with caplog.at_level(logging.INFO, logger="samite"):
        x = torch.randn(64, 64)
        torch.testing.assert_close(torch.as_tensor(compiled(x).numpy()), (x @ x).relu())
    assert any("placed by cost on cpu a=2" in record.message for record in caplog.records)
    with caplog.at_level(logging.WARNING, logger="samite"):
        samite.compile(lambda x: x + 1, mesh=samite.mesh("cpu", engine="lockstep", a=2))(torch.ones(2))
    assert "each rank of cpu a=2 computes everything: not split" in caplog.messages[-1]


@pytest.mark.usefixtures("slow_device")
def test_the_rest_beside_placements() -> None:
    """With "*" what is not placed is chosen, not followed: a part of each weight is stored where that is cheaper."""
    model, batches = MLP(64, 256), vectors(16, 64)
    placed = {"inputs": {"dp": Shard(0)}, "targets": {"dp": Shard(0)}}
    optimizer = momentum(model.parameters())
    train_step(model, optimizer, *batches(0))
    mesh = samite.mesh("cpu", engine="lockstep", dp=2, tp=2)
    layouts: list[dict[str, str]] = []
    for placements in (placed, {**placed, "*": "auto"}):
        compiled = samite.compile(train_step, mesh=mesh, placements=placements)
        _, built = compiled.lower(model, optimizer, *batches(0))
        layouts.append({a.name: str(a.layout) for a in built.program.arguments})
    followed, chosen = layouts
    assert followed["inputs"] == chosen["inputs"] == "[16:dp, 64]"
    assert followed["model.up.weight"] == "[256, 64]"
    assert "tp" in chosen["model.up.weight"]


@pytest.mark.usefixtures("slow_device")
def test_explanations_compare() -> None:
    model, batches = MLP(64, 256), vectors(64, 64)
    optimizer = momentum(model.parameters())
    train_step(model, optimizer, *batches(0))
    compiled = samite.compile(train_step, mesh=samite.mesh("cpu", engine="lockstep", dp=2))
    _, built = compiled.lower(model, optimizer, *batches(0))
    (record,) = (record for record in built.records if record.name == "place")
    words = "\n".join(record.notes)
    for way in ("not split", "data parallel", "fully sharded", "tensor parallel"):
        assert any(note.startswith((f"{way}: ", f"{way} instead: ")) for note in record.notes)
    compiled(model, optimizer, *batches(0))  # from now on the state lies somewhere
    _, built = compiled.lower(model, optimizer, *batches(0))
    (record,) = (record for record in built.records if record.name == "place")
    for way in ("not split", "data parallel", "fully sharded", "tensor parallel"):
        assert any(note.startswith((f"{way}: ", f"{way} instead: ")) for note in record.notes)
    assert "a call" in words
    assert "a rank" in words


def test_every_process_chooses_alike() -> None:
    """Under torchrun each rank compiles for itself, so the choice must not hang on the order of a set."""
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_automatic_placement import MLP, decided, topology, vectors
decision = decided(MLP(64, 256), vectors(64, 64), {{"a": 4, "b": 2}}, topology=topology())
print(*map(str, decision.chosen.cost.layouts), decision.in_words())
"""
    said = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1] != ""


# ---- the file of a topology --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, text, what",
    [
        ("t.toml", "device = 3", "not a table"),
        ("t.toml", "device =", "not TOML"),
        ("t.json", "{", "not JSON"),
        ("t.json", '{"device": {"flop": 1}}', 'no key "flop"'),
        ("missing.toml", None, "cannot be read"),
    ],
)
def test_files_that_are_no_topology(tmp_path: Path, name: str, text: str | None, what: str) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=what) as error:
        read_topology(file)
    assert error.value.where == str(file)


def test_a_topology_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("[device.flops]\nfloat32 = 1e12\n[links.tp]\nbandwidth = 1e9\nlatency = 1e-6\n")
    assert read_topology(file) == Topology(DeviceSpec(flops=(("float32", 1e12),)), (("tp", Link(1e9, 1e-6)),))


def test_meshes_that_cannot_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="lockstep engine cannot be measured") as error:
        measured_topology(samite.mesh("cpu", engine="lockstep", a=2))
    assert "name a file" in error.value.help


def test_what_was_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lockstep engine stands in for workers: the programs of the probe are what is tried here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SAMITE_TOPOLOGY", "measure")
    monkeypatch.setattr("samite.api.probe.SIZES", (1 << 8, 1 << 12))
    monkeypatch.setattr("samite.api.work.VECTORS", (1 << 7, 1 << 10, 1 << 12))
    monkeypatch.setattr("samite.api.work.HEADS", ((1, 1, 4, 4), (1, 2, 16, 16)))
    monkeypatch.setattr("samite.api.work.SQUARES", (4, 64))
    mesh = samite.mesh("cpu", engine="local", a=2, b=1)
    simulated = samite.mesh("cpu", engine="lockstep", a=2, b=1)
    monkeypatch.setattr("samite.api.probe.session_of", lambda _: session_of(simulated))
    found = configured_topology(mesh)
    assert [axis for axis, _ in found.links] == ["a"]
    assert len(found.link("a").times) == 2
    assert [name for name, times in found.link("a").algorithms if len(times) == 2] == ["direct", "ring", "tree"]
    assert 0 <= found.overlap.efficiency <= 1
    assert [kind for kind, _ in found.device.times] == list(KINDS)
    assert found.call > 0
    assert found.device.rate("float32") > 0
    monkeypatch.setattr("samite.api.probe.session_of", None)  # from now on nothing is measured
    assert configured_topology(mesh) == found
    (kept,) = (tmp_path / "samite" / "topology").iterdir()
    assert read_topology(kept) == found
