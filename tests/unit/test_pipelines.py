"""Pipelines in lockstep: losses, gradients, parameters and optimizer state are those of one device."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

import control_flows as flows
import samite
from lockstep_training import DATA_PARALLEL, momentum, train_both, train_step
from models import GPT, Llama, batch
from samite import Shard
from samite.errors import CaptureError, ConfigError, InputError, MeshError, PlacementError, ScheduleError
from samite.hal.driver import Bound, Executable
from samite.hal.program import Program
from samite.report import predicted_timeline
from samite.runtime.pipelined import PipelinedExecutable
from samite.testing import counter_rng
from samite_cpu.executable import AtenExecutable

VOCAB, BLOCK = 13, 6


class Tied(nn.Module):
    """An embedding that the last layer uses too, and between them layers that one cut or several can part."""

    def __init__(self, layers: int = 4, dim: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, dim)
        self.layers = nn.ModuleList([nn.Linear(dim, dim) for _ in range(layers)])

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        logits = x @ self.embedding.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def uneven(step: int, size: int = 24) -> tuple[Tensor, Tensor]:
    """Some rows have no targets at all, so microbatches count differently in the mean."""
    tokens, targets = batch(VOCAB, size, BLOCK, seed=step)
    targets[torch.rand(targets.shape, generator=torch.Generator().manual_seed(step)) < 0.4] = -100
    targets[1 : size // 3] = -100
    return tokens, targets


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 6, 8])
def test_every_number_of_microbatches_and_stages(microbatches: int, stages: int) -> None:
    train_both(Tied(), uneven, {"pp": stages}, {}, steps=2, microbatches=microbatches)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble"])
def test_every_schedule(schedule: str) -> None:
    train_both(Tied(), uneven, {"pp": 2}, {}, steps=2, microbatches=4, schedule=schedule)


def test_with_data_and_tensor_parallelism() -> None:
    placements = {
        "inputs": {"dp": Shard(0)},
        "targets": {"dp": Shard(0)},
        "model.blocks.*.attention.qkv.weight": {"tp": Shard(0)},
        "model.blocks.*.up.weight": {"tp": Shard(0)},
    }
    model = GPT(vocab=VOCAB, block=BLOCK, dim=16, heads=2, layers=2, tie=True)
    train_both(model, lambda step: uneven(step, 8), {"dp": 2, "pp": 2, "tp": 2}, placements, steps=2, microbatches=2)


def clipped(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = model(inputs, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss


def in_bfloat16(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(inputs, targets)
    loss.backward()
    optimizer.step()
    return loss


def small(step: int) -> tuple[Tensor, Tensor]:
    return uneven(step, 8)


def test_a_norm_over_all_stages_goes_there_and_back() -> None:
    train_both(Tied(), small, {"pp": 3}, {}, steps=2, microbatches=2, step_function=clipped)


def test_the_first_step_makes_state_on_the_stage_of_its_parameter() -> None:
    train_both(Tied(), small, {"pp": 2}, {}, steps=3, microbatches=2, warm=False)


def test_autocast() -> None:
    options = {"microbatches": 2, "step_function": in_bfloat16, "tolerance": 3e-2}
    train_both(GPT(vocab=VOCAB, block=BLOCK, dim=16, heads=2), small, {"pp": 2}, {}, steps=2, **options)


def test_dropout_is_that_of_the_whole_batch() -> None:
    model = GPT(vocab=VOCAB, block=BLOCK, dim=16, heads=2, dropout=0.2)
    alone = copy.deepcopy(model)
    mesh = samite.mesh("cpu", engine="lockstep", dp=2, pp=2)
    step = samite.compile(train_step, mesh=mesh, placements=DATA_PARALLEL, microbatches=2)
    loss = step(model, momentum(model.parameters()), *small(0))
    batch = small(0)
    with counter_rng():
        want = train_step(alone, momentum(alone.parameters()), *batch)
    torch.testing.assert_close(loss.read(), want.detach())
    torch.testing.assert_close(model.head.weight.detach().cpu(), alone.head.weight.detach())


class Checkpointed(Tied):
    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: x + torch.tanh(layer(x)), x, use_reentrant=False)
        logits = x @ self.embedding.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def test_what_is_computed_again_is_on_the_stage_of_its_forward() -> None:
    train_both(Checkpointed(), small, {"pp": 2}, {}, steps=2, microbatches=2)


def test_llama() -> None:
    train_both(Llama(), lambda step: batch(32, 8, 16, step), {"pp": 2}, {}, steps=2, microbatches=4)


def test_a_forward_alone_and_a_step_share_parameters() -> None:
    model = GPT(vocab=VOCAB, block=BLOCK, dim=16, heads=2)
    alone = copy.deepcopy(model)
    mesh = samite.mesh("cpu", engine="lockstep", pp=2)
    optimizers = [momentum(m.parameters()) for m in (model, alone)]
    train = samite.compile(train_step, mesh=mesh, microbatches=2)
    predict = samite.compile(lambda model, tokens: model(tokens), mesh=mesh, microbatches=4)
    for step in range(2):
        tokens, targets = small(step)
        train(model, optimizers[0], tokens, targets)
        train_step(alone, optimizers[1], tokens, targets)
        want = alone(tokens).detach()
        torch.testing.assert_close(predict(model, tokens).read().detach(), want)
        torch.testing.assert_close(model(tokens).detach().cpu(), want)  # eagerly
    half = {name: torch.from_numpy(value.numpy()) / 2 for name, value in model.state_dict().items()}
    model.load_state_dict(half)
    alone.load_state_dict(half)
    torch.testing.assert_close(
        train(model, optimizers[0], *small(3)).read(), train_step(alone, optimizers[1], *small(3)).detach()
    )
    assert model.head.weight.grad is not None
    assert alone.head.weight.grad is not None
    torch.testing.assert_close(model.head.weight.grad.cpu(), alone.head.weight.grad)


def test_fewer_ops_than_stages() -> None:
    def scaled(x: Tensor, w: Tensor) -> Tensor:
        w.mul_(2)  # which the loop reads and the function leaves
        return x @ w

    x, w = torch.randn(8, 3), torch.randn(3, 3)
    mesh = samite.mesh("cpu", engine="lockstep", pp=4)
    out = samite.compile(scaled, mesh=mesh, microbatches=2)(x, here := w.clone())
    torch.testing.assert_close(out.read(), x @ (2 * w))
    torch.testing.assert_close(here, 2 * w)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_inputs_that_are_returned_or_read_whole(microbatches: int) -> None:
    def first_and_all(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x @ w, x, x.flip(1)

    x, w = torch.randn(8, 3), torch.randn(3, 3)
    mesh = samite.mesh("cpu", engine="lockstep", pp=2)
    out = samite.compile(first_and_all, mesh=mesh, microbatches=microbatches)(x, w)
    for have, want in zip(out, first_and_all(x, w), strict=True):
        torch.testing.assert_close(have.read(), want)
    torch.testing.assert_close(samite.compile(lambda x: x, mesh=mesh, microbatches=microbatches)(x).read(), x)


class Scanned(flows.Layers):
    def forward(self, x: Tensor) -> Tensor:
        def layer(h: Tensor, weights: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            h = h + torch.tanh(self.norm(h) @ weights[0]) @ weights[1]
            return h, h.sum(-1)

        y, sums = scan(layer, x, (self.up, self.down))
        return y + sums.sum(0).unsqueeze(-1)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_scan_over_layers_within_a_stage(microbatches: int) -> None:
    model, x, y = Scanned(), torch.randn(8, 6), torch.randn(8, 6)
    alone = copy.deepcopy(model)
    optimizers = [momentum(m.parameters()) for m in (model, alone)]
    mesh = samite.mesh("cpu", engine="lockstep", pp=2, dp=2)
    placements = {"[xy]": {"dp": Shard(0)}} if microbatches < 4 else {}
    step = samite.compile(flows.train, mesh=mesh, placements=placements, microbatches=microbatches)
    for _ in range(2):
        flows.agree(step(model, optimizers[0], x, y), flows.plainly(flows.train, alone, optimizers[1], x, y))


def test_parameters_lie_on_their_stage_alone() -> None:
    model = Tied()
    step = train_both(model, small, {"pp": 2}, {}, steps=1, microbatches=2)
    _, built = step.lower(model, momentum(model.parameters()), *small(0))
    homes = {a.name: dict(a.layout.at) for a in built.program.arguments}
    assert homes["model.embedding.weight"] == {"pp": 0}
    assert homes["model.layers.3.weight"] == {"pp": 1}
    assert homes["inputs"] == {}


class Marked(Tied):
    def __init__(self, *before: int) -> None:
        super().__init__()
        self.before = before

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            if number in self.before:
                samite.stage()
            x = x + torch.tanh(layer(x))
        return F.cross_entropy((x @ self.embedding.weight.t()).flatten(0, 1), targets.flatten(), ignore_index=-100)


def test_stages_begin_where_they_are_marked() -> None:
    model = Marked(1)
    step = train_both(model, small, {"pp": 2}, {}, steps=1, microbatches=2)
    _, built = step.lower(model, momentum(model.parameters()), *small(0))
    homes = {a.name: dict(a.layout.at)["pp"] for a in built.program.arguments if a.name.endswith("weight")}
    assert [homes[f"model.layers.{n}.weight"] for n in range(4)] == [0, 1, 1, 1]


def test_outside_of_captures_a_mark_does_nothing() -> None:
    tokens, targets = small(0)
    assert Marked(1, 2)(tokens, targets).isfinite()
    train_both(Marked(1, 2), small, {"dp": 2}, DATA_PARALLEL, steps=1)


# ---- what is wrong --------------------------------------------------------------------------------


class BatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(inputs), targets)


def vectors(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)


class MarkedInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        def larger(x: Tensor) -> Tensor:
            samite.stage()
            return x * 2

        return F.cross_entropy(torch.cond(inputs.sum() > 0, larger, lambda x: x * 1, (self.layer(inputs),)), targets)


def lowered(model: nn.Module, batches: Any, axes: dict[str, int], placements: Any = None, **options: Any) -> Any:
    mesh = samite.mesh("cpu", engine="lockstep", **axes)
    step = samite.compile(train_step, mesh=mesh, placements=placements or "auto", **options)
    return step.lower(model, momentum(model.parameters()), *batches(0))


def test_what_needs_the_whole_batch_is_refused_with_its_line() -> None:
    with pytest.raises(
        ScheduleError, match=r"needs the whole batch, of which it is given a microbatch.*test_pipelines.py:\d+"
    ):
        lowered(BatchNorm(), vectors, {"pp": 2}, microbatches=2)
    train_both(BatchNorm(), vectors, {"pp": 2}, {}, steps=1, microbatches=1, tolerance=1e-4)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_second_loop_is_refused_with_its_line(microbatches: int) -> None:
    def twice(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        train_step(model, optimizer, inputs, targets)
        return train_step(model, optimizer, inputs, targets)  # with what was updated

    model, mesh = Tied(), samite.mesh("cpu", engine="lockstep", pp=2)
    step = samite.compile(twice, mesh=mesh, microbatches=microbatches)
    with pytest.raises(ScheduleError, match=r"(reads what the step has updated|needs the whole batch).*\.py:\d+"):
        step.lower(model, momentum(model.parameters()), *small(0))


@pytest.mark.parametrize(
    ("axes", "options", "error", "message"),
    [
        (
            {"pp": 2},
            {"microbatches": 3},
            InputError,
            r"inputs: 3 microbatches do not divide its 8 rows\n.*microbatches=2",
        ),
        ({"pp": 2}, {"microbatches": 16}, InputError, r"16 microbatches do not divide its 8 rows\n.*microbatches=8"),
        ({"pp": 2}, {"microbatches": 0}, ConfigError, "microbatches is 0"),
        ({"pp": 2}, {"schedule": "1f2b"}, ConfigError, 'no schedule "1f2b".*\n.*1f1b'),
        ({"pp": 2}, {"stages": 3}, ScheduleError, "3 stages do not spread evenly over 2 ranks"),
        ({"pp": 2}, {"stages": 2, "schedule": "interleaved"}, ScheduleError, "interleaved"),
        ({"dp": 2}, {"microbatches": 2}, ConfigError, 'give the mesh an axis "pp"'),
        ({"pp": 2, "mb": 2}, {}, MeshError, 'the axis "mb" is that of microbatches'),
    ],
)
def test_options_that_cannot_be(axes: dict[str, int], options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        lowered(Tied(layers=1), small, axes, **options)


def test_placements_along_the_axis_of_stages() -> None:
    with pytest.raises(PlacementError, match='"inputs": stages lie along "pp"'):
        lowered(Tied(), small, {"pp": 2}, {"inputs": {"pp": Shard(0)}})


def test_marks_that_make_no_stages() -> None:
    with pytest.raises(ScheduleError, match=r"2 marks of samite.stage.* make 3 stages, have 2 ranks"):
        lowered(Marked(1, 2), small, {"pp": 2})
    with pytest.raises(CaptureError, match=r"a stage cannot begin inside of a cond.*test_pipelines.py:\d+"):
        lowered(MarkedInside(), vectors, {"pp": 2})


def test_the_timeline_of_a_pipeline_has_a_lane_a_rank() -> None:
    model = Tied()
    step = samite.compile(train_step, mesh=samite.mesh("cpu", pp=2, engine="lockstep"), microbatches=4, schedule="1f1b")
    _, built = step.lower(model, momentum(model.parameters()), *batch(VOCAB, 8, BLOCK))
    drawn = predicted_timeline(built)
    assert [(lane.rank, lane.name) for lane in drawn.lanes] == [(0, "compute"), (1, "compute")]
    assert drawn.lanes[0].spans[0].name == "forward of stage 0, microbatch 0"
    assert len(drawn.lanes[1].spans) == 3 * 4
    assert drawn.critical()


def test_functions_hand_on_contiguous_values() -> None:
    """Inductor's kernels take strides as they were when it compiled them, and may give others."""

    def transposed(x: Tensor) -> Tensor:
        y = (x * 2).transpose(0, 1)
        samite.stage()
        return (y + 1).transpose(0, 1)

    step = samite.compile(transposed, mesh=samite.mesh("cpu", pp=1, engine="lockstep"), microbatches=2, stages=2)
    x = torch.arange(24.0).view(4, 6)
    _, built = step.lower(x)
    given: list[Tensor] = []

    class Watched(Bound):
        def __init__(self, bound: Bound) -> None:
            self.bound = bound

        def run(self, inputs: Any, wait: Any = ()) -> Any:
            given.extend(inputs)
            return self.bound.run(inputs, wait)

        def close(self) -> None:
            self.bound.close()

    class Compiled(Executable):
        def __init__(self, program: Program) -> None:
            self.executable = AtenExecutable.compile(program)

        def bind(self, state: Any, communicator: Any, rank: int) -> Bound:
            return Watched(self.executable.bind(state, communicator, rank))

    outputs, _ = PipelinedExecutable(built.program, Compiled).bind((), None, 0).run([x])
    assert torch.equal(outputs[0], transposed(x))
    assert len(given) >= 4
    assert all(each.is_contiguous() for each in given)
