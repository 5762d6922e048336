"""`samite.Tensor` in the process that drives a mesh: ops are recorded, sent in order, and right."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import samite
import test_tensor_ops
import test_tensor_training
import test_tensor_writes
from rank_threads import whole
from samite import Partial, Replicate, Shard
from samite.eager.stream import MOST
from samite.errors import InputError, RuleMissing, WorkerError
from samite.mesh import Mesh
from samite.runtime.session import Session, session_of
from samite.tensor import Tensor

X = torch.randn(6, 8)


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    made = samite.mesh("cpu", engine="lockstep", dp=2, tp=2)
    yield made
    session_of(made).close()


@pytest.fixture
def session(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The mesh's, which counts what it runs and loads."""
    found = session_of(mesh)
    found.flush()
    counts = {"run": 0, "load": 0}

    def counted(name: str, plain: Any) -> Any:
        def call(*args: Any) -> Any:
            counts[name] += 1
            return plain(*args)

        return call

    for name in counts:
        monkeypatch.setattr(found, name, counted(name, getattr(found, name)))
    monkeypatch.setattr(found, "counts", counts, raising=False)
    return found


def compare(act: Any, operands: dict[str, torch.Tensor], placements: dict[str, Any], mesh: Mesh) -> None:
    def run(make: Any) -> tuple[list[Any], list[Any]]:
        leaves = {name: make(name, x).requires_grad_(x.is_floating_point()) for name, x in operands.items()}
        results = act(**leaves)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        torch.manual_seed(1)
        for result in results:
            if result.requires_grad:
                result.backward(torch.randn(result.shape, dtype=result.dtype), retain_graph=True)
        return whole([x.detach() for x in results]), whole([x.grad for x in leaves.values() if x.is_floating_point()])

    expected = run(lambda name, x: x.clone())
    found = run(lambda name, x: samite.tensor(x, mesh, placements.get(name, {})))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", test_tensor_ops.OPS)
def test_ops(op: str, mesh: Mesh) -> None:
    module = test_tensor_ops
    operands = {"x": module.X, "y": module.Y, "w": module.W, "b": module.B}
    compare(module.OPS[op], operands, module.LAYOUTS["partial"], mesh)


@pytest.mark.parametrize("write", test_tensor_writes.WRITES)
def test_writes(write: str, mesh: Mesh) -> None:
    module = test_tensor_writes
    compare(module.WRITES[write], {"x": module.X, "y": module.Y}, module.LAYOUTS["both"], mesh)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adamw, one by one"])
def test_training(optimizer: str, mesh: Mesh) -> None:
    module = test_tensor_training
    options: Any = {"make": module.OPTIMIZERS[optimizer], "clip": 2.0, "steps": 3}
    expected = module.trained(copy.deepcopy(module.MLP), batch=lambda: module.BATCH, **options)
    given = tuple(samite.tensor(x, mesh, {"dp": Shard(0)}) for x in module.BATCH)
    model = module.distributed(module.MLP, mesh, module.MEGATRON)
    found = module.trained(model, batch=lambda: given, **options)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_ops_are_sent_when_somebody_reads(mesh: Mesh, session: Any) -> None:
    x = samite.tensor(X, mesh, {"dp": Shard(0)})
    y = (x * 2 + 1).relu()
    assert y.placements == {"dp": Shard(0), "tp": Replicate()}
    assert session.counts["run"] == 0
    assert y.sum().item() == pytest.approx((X * 2 + 1).relu().sum().item(), rel=1e-5)
    assert session.counts["run"] == 1


def test_ops_are_sent_when_there_are_many(mesh: Mesh, session: Any) -> None:
    x = samite.tensor(X, mesh, {"dp": Shard(0)})
    for _ in range(MOST - 1):
        x = x + 1
    assert session.counts["run"] == 0
    x = x + 1
    assert session.counts["run"] == 1
    torch.testing.assert_close(whole(x), X + MOST)


def test_a_loop_compiles_once(mesh: Mesh, session: Any) -> None:
    w = samite.tensor(torch.eye(8), mesh, {"tp": Shard(0)})
    x = samite.tensor(X, mesh, {"dp": Shard(0)})
    for step in range(4):
        y = (x @ w).tanh()
        w.sub_(y.t() @ y, alpha=0.01 * (step + 1))  # a rate that changes is an argument of the program
        y.sum().item()
    assert session.counts == {"run": 4, "load": 1}


def test_what_nobody_holds_is_not_kept(mesh: Mesh, session: Any) -> None:
    x = samite.tensor(X, mesh, {"dp": Shard(0)})
    (x.exp() + 1).relu()
    x.neg()
    session.flush()
    assert session.counts["run"] == 0


def test_a_plain_operand_may_be_written_to_afterwards(mesh: Mesh) -> None:
    plain = torch.ones(8)
    y = samite.tensor(X, mesh, {"dp": Shard(0)}) + plain
    plain.zero_()
    torch.testing.assert_close(whole(y), X + 1)


def test_an_op_on_a_value_that_is_overwritten_later_reads_the_earlier_one(mesh: Mesh) -> None:
    x = samite.tensor(X, mesh, {"dp": Shard(0)})
    doubled = x * 2
    x.copy_(torch.zeros(6, 8))
    tripled = x * 3
    x.add_(1)
    torch.testing.assert_close(whole(doubled), X * 2)
    assert whole(tripled).eq(0).all()
    assert whole(x).eq(1).all()


def test_recorded_ops_and_compiled_steps_keep_their_order(mesh: Mesh) -> None:
    x = samite.tensor(X, mesh, {"dp": Shard(0)})

    @samite.compile(mesh=mesh)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    before = x + 1
    x.add_(1)
    view = x[2]
    out = doubled(x)
    after = x * 1
    torch.testing.assert_close(whole(before), X + 1)
    torch.testing.assert_close(whole(out), 2 * (X + 1) + 1)
    torch.testing.assert_close(whole(after), 2 * (X + 1))
    torch.testing.assert_close(whole(view), 2 * (X[2] + 1))
    torch.testing.assert_close(whole(out * 2), 2 * (2 * (X + 1) + 1))


def test_redistribute(mesh: Mesh) -> None:
    x = samite.tensor(X, mesh, {"dp": Shard(0)}, requires_grad=True)
    y = x.redistribute({"tp": Shard(1)})
    assert y.placements == {"dp": Replicate(), "tp": Shard(1)}
    (y * 2).sum().backward()
    assert x.grad.placements == x.placements
    torch.testing.assert_close(whole(x.grad), torch.full_like(X, 2.0))
    product = samite.tensor(X, mesh, {"tp": Shard(1)}) @ samite.tensor(X.t(), mesh, {"tp": Shard(0)})
    assert product.placements["tp"] == Partial()
    torch.testing.assert_close(whole(product.redistribute({"tp": Shard(0)})), X @ X.t())


def test_copies(mesh: Mesh) -> None:
    model = samite.distribute_module(nn.Linear(8, 4), mesh, {"weight": {"tp": Shard(0)}})
    copied = copy.deepcopy(model)
    assert isinstance(copied.weight, nn.Parameter)
    assert isinstance(copied.weight, Tensor)
    assert copied.weight.placements["tp"] == Shard(0)
    with torch.no_grad():
        model.weight.zero_()
    assert whole(copied.weight).abs().sum() > 0


def test_random_numbers_are_those_of_a_rank(mesh: Mesh) -> None:
    from rank_threads import mesh_of, on_ranks

    def numbers(mesh: Mesh) -> torch.Tensor:
        return whole(samite.randn((5, 6), mesh))

    torch.manual_seed(3)
    expected = on_ranks(mesh_of(d=1), lambda: numbers(mesh_of(d=1)))[0]
    torch.manual_seed(3)
    assert numbers(mesh).equal(expected)


def test_printing_shows_values(mesh: Mesh) -> None:
    x = samite.tensor([1.0, 2.0], mesh, {"dp": Shard(0)})
    assert repr(x + 1) == "samite.Tensor([2., 3.], layout=[2:dp], mesh=(cpu dp=2 tp=2))"


def test_taking_a_whole_value_is_said_in_the_log(mesh: Mesh, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="samite"):
        assert samite.tensor([3.0], mesh, {"dp": Shard(0)})[0].item() == 3.0
    assert "takes the whole of a value laid out as" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="samite"):
        assert samite.tensor([[3.0]], mesh, {"dp": Shard(0), "tp": Shard(1)}).item() == 3.0
    [record] = [r for r in caplog.records if "takes the whole of a value laid out as [1:dp, 1:tp]" in r.getMessage()]
    assert record.levelno == logging.DEBUG


class TestErrors:
    def test_a_rule_that_is_missing_is_told_at_once(self, mesh: Mesh) -> None:
        with torch.library._scoped_library("samite_stream", "DEF") as library:
            library.define("unruled(Tensor x) -> Tensor")
            library.impl("unruled", lambda x: x.clone(), "CompositeExplicitAutograd")
            with pytest.raises(RuleMissing, match="no sharding rule"):
                torch.ops.samite_stream.unruled(samite.tensor(torch.eye(4), mesh, {"dp": Shard(0)}))

    def test_shapes_that_do_not_fit_are_told_at_once(self, mesh: Mesh) -> None:
        with pytest.raises(RuntimeError, match="broadcast"):
            samite.tensor(X, mesh) + samite.tensor(torch.ones(5), mesh)

    def test_an_error_of_a_worker_has_the_line_that_recorded_the_op(self, mesh: Mesh) -> None:
        x = samite.tensor(X, mesh)
        y = x.index_select(0, samite.tensor([99], mesh))
        z = y + 1
        with pytest.raises(WorkerError, match="index") as caught:
            z.sum().item()
        assert caught.value.where.startswith("tests/unit/test_tensor_stream.py:")
        line = int(caught.value.where.rpartition(":")[2])
        assert "index_select" in Path(__file__).read_text().splitlines()[line - 1]
        with pytest.raises(WorkerError, match="index"):
            whole(y)
        torch.testing.assert_close(whole(x + 1), X + 1)

    def test_from_local(self, mesh: Mesh) -> None:
        with pytest.raises(InputError, match="other processes"):
            samite.from_local(torch.ones(2), mesh)
        with pytest.raises(InputError, match="full_tensor"):
            samite.tensor(X, mesh).to_local()
