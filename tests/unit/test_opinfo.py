"""The sweep of PyTorch's op database: a part of it, and that it finds what is wrong."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from samite.errors import CaptureError, ConfigError, RuleMissing, VerifyError, WorkerError
from samite.passes import fragments
from samite.passes.placement import plans
from samite.rules import Rule, language, rules
from samite.rules.binding import bind
from samite.testing.opinfo import Effort, Record, sweep, sweep_all, workers
from samite.testing.opinfo.calls import OpCall, expected
from samite.testing.opinfo.database import names, samples
from samite.testing.opinfo.outcomes import difference, of_error
from samite.testing.opinfo.placements import MESHES, describe, placements
from samite.testing.opinfo.store import Store

FEW = Effort(samples=1, placements=2)
EVERY = 40


@pytest.mark.parametrize("name", names()[::EVERY])
def test_entries_are_right_or_refused(name: str) -> None:
    found = sweep(name, FEW).samite
    assert found.verdict() in ("right", "unsupported", "skipped"), found.findings


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
    plans._plans.clear()


def test_a_wrong_rule_is_found(registry: dict[str, Rule]) -> None:
    registry["aten.cumsum"] = dataclasses.replace(rules()["aten.cumsum"], plain="", expand={}, text="*a -> *a", at="")
    forget()
    found = sweep("cumsum", Effort(samples=2, placements=4)).samite
    assert found.verdict("forward") == "wrong"
    wrong = next(f for f in found.findings if f.verdict == "wrong")
    assert "differ" in wrong.reason
    assert wrong.call.startswith("float32[5, 5, 5]")
    assert "cpu a=" in wrong.where


def test_a_missing_rule_is_named(registry: dict[str, Rule]) -> None:
    del registry["aten.cumsum"]
    forget()
    found = sweep("cumsum", FEW).samite
    assert found.verdict() == "unsupported"
    assert {f.reason for f in found.findings} == {"no rule: aten.cumsum"}
    assert found.count("right") == 0


def test_what_is_refused_says_why() -> None:
    assert "depends on data" in sweep("nonzero", FEW).samite.findings[0].reason


def test_what_torch_cannot_is_skipped() -> None:
    assert sweep("jiterator_unary", FEW).samite.verdict() == "skipped"


def test_random_entries_draw_what_a_program_draws() -> None:
    found = sweep("bernoulli", Effort(samples=2, placements=2))
    assert "samite.philox_uniform" in found.ops
    assert found.samite.verdict() == "right", found.samite.findings


def test_entries_that_write_to_their_arguments() -> None:
    assert sweep("zero_", FEW).samite.verdict("forward") == "right"


def test_sweeps_are_the_same_every_time() -> None:
    first, again = sweep("sum", FEW), sweep("sum", FEW)
    assert first == again
    assert Record.from_json(first.to_json()) == first
    assert first.local + first.whole > 0


# ---- DTensor ------------------------------------------------------------------------------------


def test_dtensor_tries_the_same() -> None:
    effort = Effort(samples=2, placements=3, dtensor=True)
    record = sweep("nn.functional.conv2d", effort)
    assert record.samite.verdict() == "right"
    assert record.dtensor.count("right") > 0
    tried = [
        sum(tally.count(v) for v in ("right", "wrong", "unsupported")) for tally in (record.samite, record.dtensor)
    ]
    assert tried[0] == tried[1]
    assert sweep("add", effort).dtensor.verdict() == "right"


# ---- parts --------------------------------------------------------------------------------------


def test_a_worker_that_dies_costs_its_entry() -> None:
    found = {record.name: record for record in sweep_all(["no such entry", "abs"], FEW, processes=1)}
    assert found["no such entry"].samite.findings[0].reason == "the process died (exit code 1)"
    assert found["abs"].samite.verdict() == "right"


def test_a_worker_that_hangs_is_ended() -> None:
    [found] = sweep_all(["abs"], FEW, processes=1, seconds=0.01)
    assert found.samite.verdict() == "crashed"
    assert "took more than" in found.samite.findings[0].reason


def test_dtensor_that_hangs_costs_samite_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    ask = workers._ask

    def slow(worker: Any, name: str, dtensor: bool, seconds: float) -> Record:
        asked.append(dtensor)
        if dtensor:
            raise WorkerError("took more than 1 s")
        return ask(worker, name, dtensor, seconds)

    monkeypatch.setattr(workers, "_ask", slow)
    both = dataclasses.replace(FEW, dtensor=True)
    [found] = sweep_all(["abs"], both, processes=1)
    assert asked == [True, False]
    assert found.samite.verdict() == "right"
    assert found.dtensor.findings[0].reason == "took more than 1 s"
    [found] = sweep_all(["abs"], both, processes=1, alone={"abs"})
    assert not found.dtensor.counts


def test_calls_keep_what_they_are_given() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.zeros(2)
    call = OpCall.of(lambda a, b, *, out: a + b[0] + out, (x, [y, 3]), {"out": y})
    assert call.text == "float32[2], [float32[2], 3], out=float32[2]"
    assert (len(call.tensors), call.learned) == (3, (0,))
    wanted, after = expected(call, None)
    torch.testing.assert_close(wanted, torch.ones(2))
    assert len(after) == 3
    backward = call.backward(lambda out: out, torch.Generator().manual_seed(0))
    assert backward is not None
    assert expected(backward, None)[0][0].equal(backward.tensors[-1])
    assert OpCall.of(torch.neg, (y,), {}).backward(lambda out: out, torch.Generator()) is None


def test_samples_are_bounded_and_drawn_anew() -> None:
    drawn = [d.call.text for d in samples("sum", torch.float32, 3)]
    assert len(drawn) == 3
    assert drawn == [d.call.text for d in samples("sum", torch.float32, 3)]
    assert len([*samples("sum", torch.float32, 0)]) == 0


def test_in_place_forms_are_given_the_first_sample() -> None:
    abs, in_place = samples("abs", torch.float32, 1)
    assert (abs.in_place, in_place.in_place) == (False, True)
    assert in_place.call.text == abs.call.text
    made, after = expected(in_place.call, None)
    assert made is after[0]
    counts = sweep("abs", FEW).samite.counts
    assert counts["in place right"] > 0
    assert not any("in place" in key for key in sweep("mm", FEW).samite.counts)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_placements_are_of_dims_that_are_there(mesh: Any) -> None:
    tensors = [torch.ones(3, 2), torch.ones(()), torch.ones(4)]
    found = [*placements(tensors, mesh, 6, random.Random(0))]
    assert len(found) <= 6
    for placed in found:
        for i, axes in placed.items():
            assert all(-tensors[i].dim() <= shard.dim < tensors[i].dim() for shard in axes.values())
            assert set(axes) <= set(mesh)
        assert describe(placed)
    assert [*placements([torch.ones(())], mesh, 6, random.Random(0))] in ([], [{}])


@pytest.mark.parametrize("made, wanted, text", [
    (torch.ones(2), torch.ones(2) * 1.00001, ""),
    (torch.ones(2), torch.ones(2) * 1.01, "result 0: differs by 0.01"),
    ([torch.ones(2), torch.tensor([1, 2])], [torch.ones(2), torch.tensor([1, 3])], "result 1: 1 of 2 elements differ"),
    (torch.ones(2), torch.ones(3), "float32[2], not float32[3]"),
    (torch.ones(2), torch.ones(2).double(), "float32[2], not float64[2]"),
    (torch.tensor([1, torch.nan]), torch.ones(2), "1 of 2 elements are NaN"),
    (torch.tensor([torch.nan]), torch.tensor([torch.nan]), ""),
    (3, 4, "3, not 4"),
    (float("nan"), float("nan"), ""),
    ((torch.ones(1),), (torch.ones(1), torch.ones(1)), "is expected"),
    (torch.tensor([1j]), torch.tensor([2j]), "differs by 1"),
])  # fmt: skip
def test_differences(made: Any, wanted: Any, text: str) -> None:
    assert text in difference(made, wanted) if text else difference(made, wanted) == ""


def test_undefined_values_are_not_compared() -> None:
    assert difference(torch.ones(2), torch.zeros(2), values=False) == ""
    assert difference(torch.ones(2), torch.zeros(3), values=False)


@pytest.mark.parametrize("error, verdict", [
    (RuleMissing("aten.foo(x): no sharding rule"), "unsupported"),
    (CaptureError("no"), "unsupported"),
    (VerifyError("broken"), "crashed"),
    (ZeroDivisionError("by zero"), "crashed"),
])  # fmt: skip
def test_errors_are_refusals_or_crashes(error: Exception, verdict: str) -> None:
    assert of_error(error).verdict == verdict


# ---- what is kept -------------------------------------------------------------------------------


def test_a_store_is_taken_up_by_the_same_sweep_alone(tmp_path: Path) -> None:
    store = Store.resume(tmp_path / "ops.json", FEW)
    assert not store.records
    store.records["sum"], store.records["abs"] = Record("sum", 2), Record("abs", 1)
    store.save(["abs", "sum"])
    again = Store.resume(store.path, FEW)
    assert list(again.records) == ["abs", "sum"]
    assert not Store.resume(store.path, dataclasses.replace(FEW, seed=1)).records
    both = dataclasses.replace(FEW, dtensor=True)
    older = Store(store.path, Store.resume(store.path, both).made_by | {"code": "older"}, {"abs": Record("abs")})
    older.records["abs"].dtensor.counts["forward right"] = 3
    older.save(["abs"])
    again = Store.resume(store.path, both)
    assert (list(again.records), list(again.dtensor)) == ([], ["abs"])
    again.add(Record("abs"))
    assert again.records["abs"].dtensor.count("right") == 3
    assert not Store.resume(store.path, FEW).dtensor
    with pytest.raises(ConfigError, match="holds no sweep"):
        Store.read(tmp_path / "other.json")
    store.path.write_text("[]")
    with pytest.raises(ConfigError, match="holds no sweep"):
        Store.resume(store.path, FEW)
