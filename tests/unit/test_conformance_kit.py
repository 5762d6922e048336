"""The conformance kit finds what is wrong: a small healthy backend passes it, and each planted fault fails its test."""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from samite import plugins
from samite.errors import BackendUnusable, ConfigError
from samite.hal.driver import Device
from samite.testing.conformance import ProgramSuite

TINY = Path(__file__).parents[1] / "packaging" / "tiny_backend"
_numbers = itertools.count()
SUITES = ("DriverSuite", "MemorySuite", "ProgramSuite", "CollectiveSuite")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the smallest backend, with its plugin registered."""
    monkeypatch.syspath_prepend(TINY)
    plugins.load("tiny", "samite_tiny:Plugin")
    import samite_tiny.driver

    yield samite_tiny.driver
    plugins.unregister("tiny")
    for name in [name for name in sys.modules if name.startswith("samite_tiny")]:
        del sys.modules[name]


class Outcomes:
    """A plugin of the inner pytest run: what became of each test, by outcome, and the texts that it gave."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.text = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            expected = report.skipped and hasattr(report, "wasxfail")
            self.counts["xfailed" if expected else f"{report.outcome} in {report.when}"] += 1
            self.text += str(report.longrepr)


@pytest.fixture
def conform(tmp_path: Path) -> Callable[..., Outcomes]:
    """Runs tests of one suite, chosen as by -k, on a driver, in this process."""

    def run(suite: str, *body: str, driver: str = "tiny", only: str = "") -> Outcomes:
        path = tmp_path / f"test_inner_{next(_numbers)}.py"  # modules are known by name, so each has its own
        lines = [f'driver_name = "{driver}"', *body]
        path.write_text(
            f"from samite.testing.conformance import {suite}\n\nclass TestIt({suite}):\n    " + "\n    ".join(lines)
        )
        outcomes = Outcomes()
        options = ["-q", "-c", os.devnull, f"--rootdir={tmp_path}", "--import-mode=importlib", "-p", "no:cacheprovider"]
        options += ["-p", "no:unraisableexception"]  # it collects garbage five times at the end, half a second here
        pytest.main([*options, str(path), "-k", only], plugins=[outcomes])
        return outcomes

    return run


@pytest.mark.parametrize("suite", SUITES)
def test_a_healthy_backend_passes(tiny: Any, conform: Callable[..., Outcomes], suite: str) -> None:
    counts = conform(suite).counts
    if suite == "CollectiveSuite":
        assert set(counts) == {"skipped in setup"}
    else:
        assert counts["passed in call"] >= 6
        assert set(counts) <= {"passed in call", "skipped in call"}


def wrong_numbers(tiny: Any, patch: pytest.MonkeyPatch) -> None:
    run = tiny.TinyBound.run

    def off(self: Any, inputs: Any, wait: Any = ()) -> Any:
        outputs, event = run(self, inputs, wait)
        return [x * 1.001 if x.is_floating_point() else x for x in outputs], event

    patch.setattr(tiny.TinyBound, "run", off)


def changed_inputs(tiny: Any, patch: pytest.MonkeyPatch) -> None:
    run = tiny.TinyBound.run

    def overwriting(self: Any, inputs: Any, wait: Any = ()) -> Any:
        outputs, event = run(self, inputs, wait)
        return [x.clone() for x in outputs], [x.zero_() for x in inputs] and event

    patch.setattr(tiny.TinyBound, "run", overwriting)


def state_kept_back(tiny: Any, patch: pytest.MonkeyPatch) -> None:
    """The new state is used at the next step and never shown in the slots."""
    bind = tiny.TinyExecutable.bind

    class Hidden:
        def __init__(self, slot: Any) -> None:
            self.value = slot.value

    patch.setattr(tiny.TinyExecutable, "bind", lambda self, state, *_, rank: bind(self, map(Hidden, state), None, rank))


def scalars_baked_in(tiny: Any, patch: pytest.MonkeyPatch) -> None:
    run = tiny.TinyBound.run

    def baked(self: Any, inputs: Any, wait: Any = ()) -> Any:
        first = self.__dict__.setdefault("first", [x.clone() for x in inputs])
        return run(self, [old if x.dim() == 0 else x for old, x in zip(first, inputs, strict=True)], wait)

    patch.setattr(tiny.TinyBound, "run", baked)


def deaf_to_events(tiny: Any, patch: pytest.MonkeyPatch) -> None:
    run = tiny.TinyBound.run
    patch.setattr(tiny.TinyBound, "run", lambda self, inputs, wait=(): run(self, inputs))


def forgetful_artifacts(tiny: Any, patch: pytest.MonkeyPatch) -> None:
    load = tiny.TinyDriver.load

    def forgetting(self: Any, artifact: bytes, devices: Any) -> Any:
        executable = load(self, artifact, devices)
        executable.aliases = [-1] * len(executable.aliases)
        return executable

    patch.setattr(tiny.TinyDriver, "load", forgetting)


def short_copies(tiny: Any, patch: pytest.MonkeyPatch) -> None:
    copy = tiny.TinyAllocator.copy

    def short(self: Any, source: Any, target: Any) -> Any:
        if source.bytes is None or not source.nbytes:
            return copy(self, source, target)
        last = target.handle[-1]
        copy(self, source, target)
        target.handle[-1] = last
        return tiny.Ready()

    patch.setattr(tiny.TinyAllocator, "copy", short)


def shared_allocations(tiny: Any, patch: pytest.MonkeyPatch) -> None:
    alloc = tiny.TinyAllocator.alloc
    kept: dict[int, Any] = {}
    patch.setattr(tiny.TinyAllocator, "alloc", lambda self, n: kept.setdefault(n, alloc(self, n)))
    patch.setattr(tiny.TinyAllocator, "free", lambda self, allocation: None)


def endless_memory(tiny: Any, patch: pytest.MonkeyPatch) -> None:
    alloc = tiny.TinyAllocator.alloc
    patch.setattr(tiny.TinyAllocator, "alloc", lambda self, n: alloc(self, min(n, 2**20)))


def bare_device(tiny: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tiny, "DEVICE", Device("tiny"))


def changing_devices(tiny: Any, patch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(1000))
    patch.setattr(tiny.TinyDriver, "devices", lambda self: [Device("tiny", latency=next(numbers) + 1.0)])


@pytest.mark.parametrize(
    ("fault", "suite", "found_by"),
    [
        (wrong_numbers, "ProgramSuite", "test_computes and softmax"),
        (changed_inputs, "ProgramSuite", "test_computes and pointwise"),
        (state_kept_back, "ProgramSuite", "test_state_is_replaced_in_its_slots"),
        (state_kept_back, "ProgramSuite", "test_state_put_into_a_slot_is_read"),
        (scalars_baked_in, "ProgramSuite", "test_scalars_are_read_at_every_call"),
        (deaf_to_events, "ProgramSuite", "test_a_run_waits_for_events"),
        (forgetful_artifacts, "ProgramSuite", "test_saved_state_programs_load"),
        (short_copies, "MemorySuite", "test_copies_exactly and 1000"),
        (short_copies, "MemorySuite", "test_a_buffer_is_coherent"),
        (shared_allocations, "MemorySuite", "test_allocations_do_not_overlap"),
        (endless_memory, "MemorySuite", "test_too_much_is_out_of_memory"),
        (bare_device, "DriverSuite", "test_describes_its_devices"),
        (changing_devices, "DriverSuite", "test_enumerates_the_same_devices_again"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_fault_is_found(
    fault: Callable[[Any, pytest.MonkeyPatch], None],
    suite: str,
    found_by: str,
    tiny: Any,
    conform: Callable[..., Outcomes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(conform(suite, only=found_by).counts) == {"passed in call"}
    fault(tiny, monkeypatch)
    assert set(conform(suite, only=found_by).counts) == {"failed in call"}


def test_an_unusable_backend_skips_with_its_reason(
    tiny: Any, conform: Callable[..., Outcomes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise BackendUnusable("no card in this machine")

    monkeypatch.setattr(tiny, "TinyDriver", absent)
    outcomes = conform("ProgramSuite")
    assert set(outcomes.counts) == {"skipped in setup"}
    assert "no card in this machine" in outcomes.text


def test_an_absent_backend_fails(conform: Callable[..., Outcomes]) -> None:
    outcomes = conform("DriverSuite", driver="no_such_backend")
    assert set(outcomes.counts) == {"failed in setup"}
    assert "pip install samite-no-such-backend" in outcomes.text


def test_a_driver_without_devices_skips(
    tiny: Any, conform: Callable[..., Outcomes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny.TinyDriver, "devices", lambda self: [])
    outcomes = conform("MemorySuite")
    assert set(outcomes.counts) == {"skipped in setup"}
    assert "tiny finds no device here" in outcomes.text


def test_what_is_declared_unsupported_is_skipped_with_the_reason(tiny: Any, conform: Callable[..., Outcomes]) -> None:
    outcomes = conform("ProgramSuite", 'unsupported = {"softmax": "no exp unit", "a_program_travels": "no pickles"}')
    assert outcomes.counts["skipped in setup"] == 3, "the case computed, the case loaded, the test"
    assert "tiny does not support softmax: no exp unit" in outcomes.text
    assert "tiny does not support a_program_travels: no pickles" in outcomes.text


def test_what_is_declared_to_fail_must_fail(
    tiny: Any, conform: Callable[..., Outcomes], monkeypatch: pytest.MonkeyPatch
) -> None:
    body, only = 'xfail = {"a_run_waits_for_events": "ticket 12"}', "test_a_run_waits_for_events"
    assert set(conform("ProgramSuite", body, only=only).counts) == {"failed in call"}
    deaf_to_events(tiny, monkeypatch)
    assert set(conform("ProgramSuite", body, only=only).counts) == {"xfailed"}


@pytest.mark.parametrize("declaration", ["unsupported", "xfail"])
def test_declarations_are_checked(declaration: str) -> None:
    with pytest.raises(ConfigError, match='no test or case "sofmax"') as error:
        type("TestX", (ProgramSuite,), {declaration: {"sofmax": "why"}})
    assert error.value.help == 'did you mean "softmax"?'
    with pytest.raises(ConfigError, match='"softmax" needs a reason'):
        type("TestX", (ProgramSuite,), {declaration: {"softmax": " "}})


def test_tolerance_is_by_dtype() -> None:
    class Loose(ProgramSuite):
        driver_name = "tiny"
        tolerance: ClassVar = {"float32": (0.1, 0.0)}

    Loose().close_to(torch.tensor(1.05), torch.tensor(1.0))
    with pytest.raises(AssertionError):
        Loose().close_to(torch.tensor(1.05).double(), torch.tensor(1.0).double())
