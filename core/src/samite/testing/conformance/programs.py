"""What a backend's executables promise: right results, state in its slots, artifacts that load again."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from samite.errors import UnsupportedOp
from samite.hal.driver import Bound, Device, Driver, Executable, StateSlot
from samite.hal.program import Argument, Program
from samite.testing.conformance.cases import CASES, Case, argument, program, result
from samite.testing.conformance.suite import Suite

__all__ = ["ProgramSuite"]

MOMENTUM = program(
    "momentum",
    (argument("w", 4, kind="state"), argument("g", 4), argument("m", 4, kind="state"), argument("lr", kind="scalar")),
    (result(4, alias=2), result(), result(4, alias=0)),
    """
    func.func @main(%w: !row, %g: !row, %m: !row, %lr: !scalar) -> (!row, !scalar, !row) {
      %none = torch.constant.none
      %one = torch.constant.int 1
      %half = torch.constant.float 0.5
      %0 = torch.aten.mul.Scalar %m, %half : !row, !torch.float -> !row
      %1 = torch.aten.add.Tensor %0, %g, %one : !row, !row, !torch.int -> !row
      %2 = torch.aten.mul.Tensor %1, %lr : !row, !scalar -> !row
      %3 = torch.aten.sub.Tensor %w, %2, %one : !row, !row, !torch.int -> !row
      %4 = torch.aten.sum %w, %none : !row, !torch.none -> !scalar
      return %1, %4, %3 : !row, !scalar, !row
    }""",
)
UNKNOWN = """
    func.func @main(%a: !row) -> !row {
      %0 = torch.operator "torch.nowhere.no_such_op"(%a) : (!row) -> !row
      return %0 : !row
    }"""


@dataclass
class Slot(StateSlot):
    """A slot that offers no spare memory."""

    value: torch.Tensor


class ProgramSuite(Suite):
    """Compiling and running on the first device. `options` go to compile; `tolerance` is (rtol, atol) by dtype."""

    cases: ClassVar[Sequence[str]] = [case.name for case in CASES]
    options: ClassVar[Mapping[str, Any]] = {}
    tolerance: ClassVar[Mapping[str, tuple[float, float]]] = {}

    def place(self, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        """Brings a test's tensor to where programs read it. Override for memory that is not the host's."""
        return tensor

    def close_to(self, actual: torch.Tensor, wanted: torch.Tensor) -> None:
        rtol, atol = self.tolerance.get(str(wanted.dtype).removeprefix("torch."), (None, None))
        torch.testing.assert_close(actual.cpu(), wanted, rtol=rtol, atol=atol)

    @pytest.fixture(params=CASES, ids=cases)
    def case(self, request: pytest.FixtureRequest) -> Case:
        return request.param

    @pytest.fixture
    def momentum(self, driver: Driver, device: Device) -> Executable:
        return driver.compile(MOMENTUM, [device], self.options)

    @pytest.fixture
    def slots(self, device: Device) -> list[Slot]:
        """The state of `momentum`: weights, then momentum."""
        return [Slot(self.place(torch.arange(4.0), device)), Slot(self.place(torch.zeros(4), device))]

    @pytest.fixture
    def bound(self, momentum: Executable, slots: list[Slot]) -> Iterator[Bound]:
        bound = momentum.bind(slots, None, rank=0)
        yield bound
        bound.close()

    def run_case(self, executable: Executable, case: Case, device: Device) -> list[torch.Tensor]:
        """Runs a stateless case three times on new inputs, checks every run, and gives the last results."""
        bound = executable.bind([], None, rank=0)
        outputs: list[torch.Tensor] = []
        for seed in range(3):
            inputs = _inputs(case.arguments, seed)
            placed = [self.place(x.clone(), device) for x in inputs]
            outputs, event = bound.run(placed)
            event.wait()
            wanted = case.reference(*inputs)
            assert len(outputs) == len(wanted)
            for actual, reference in zip(outputs, wanted, strict=True):
                self.close_to(actual, reference)
            for before, after in zip(inputs, placed, strict=True):
                assert torch.equal(before, after.cpu()), "a program changed its input"
        bound.close()
        return outputs

    def step(
        self, bound: Bound, device: Device, gradient: float = 1.0, lr: float = 0.5, wait: Sequence[Any] = ()
    ) -> float:
        """One step of `momentum`; gives the sum of the weights before it."""
        inputs = [self.place(torch.full((4,), gradient), device), self.place(torch.tensor(lr), device)]
        (total,), event = bound.run(inputs, wait)
        event.wait()
        return total.item()

    def test_computes(self, driver: Driver, device: Device, case: Case) -> None:
        outputs = self.run_case(driver.compile(case.program, [device], self.options), case, device)
        for output, promised in zip(outputs, case.results, strict=True):
            assert tuple(output.shape) == promised.layout.shape
            assert str(output.dtype) == f"torch.{promised.dtype}"

    def test_save_and_load(self, driver: Driver, device: Device, case: Case) -> None:
        artifact = driver.compile(case.program, [device], self.options).save()
        assert isinstance(artifact, bytes)
        self.run_case(driver.load(artifact, [device]), case, device)

    def test_state_is_replaced_in_its_slots(self, bound: Bound, slots: list[Slot], device: Device) -> None:
        weights, momentum = torch.arange(4.0), torch.zeros(4)
        for _ in range(3):
            assert self.step(bound, device) == pytest.approx(weights.sum().item())
            momentum = 0.5 * momentum + 1
            weights = weights - 0.5 * momentum
            self.close_to(slots[0].value, weights)
            self.close_to(slots[1].value, momentum)

    def test_state_put_into_a_slot_is_read(self, bound: Bound, slots: list[Slot], device: Device) -> None:
        self.step(bound, device)
        slots[0].value = self.place(torch.full((4,), 10.0), device)
        assert self.step(bound, device) == pytest.approx(40.0)

    def test_scalars_are_read_at_every_call(self, bound: Bound, slots: list[Slot], device: Device) -> None:
        self.step(bound, device, lr=0.0)
        self.close_to(slots[0].value, torch.arange(4.0))
        self.step(bound, device, gradient=0.0, lr=2.0)
        self.close_to(slots[0].value, torch.arange(4.0) - 1.0)

    def test_a_run_waits_for_events(self, bound: Bound, slots: list[Slot], device: Device) -> None:
        class Waited:
            count = 0

            def wait(self) -> None:
                self.count += 1

        event = Waited()
        self.step(bound, device, wait=[event])
        assert event.count == 1

    def test_bound_programs_are_independent(
        self, momentum: Executable, bound: Bound, slots: list[Slot], device: Device
    ) -> None:
        other_slots = [Slot(slot.value.clone()) for slot in slots]
        other = momentum.bind(other_slots, None, rank=0)
        self.step(bound, device)
        self.close_to(other_slots[0].value, torch.arange(4.0))
        self.step(other, device)
        self.close_to(other_slots[0].value, slots[0].value.cpu())
        other.close()

    def test_saved_state_programs_load(
        self, driver: Driver, momentum: Executable, slots: list[Slot], device: Device
    ) -> None:
        bound = driver.load(momentum.save(), [device]).bind(slots, None, rank=0)
        self.step(bound, device)
        self.close_to(slots[0].value, torch.arange(4.0) - 0.5)
        bound.close()

    def test_a_program_travels(self, driver: Driver, device: Device) -> None:
        (case, *_) = CASES
        sent: Program = pickle.loads(pickle.dumps(case.program))
        self.run_case(driver.compile(sent, [device], self.options), case, device)

    def test_an_unknown_op_is_refused_by_name(self, driver: Driver, device: Device) -> None:
        unknown = program("unknown", (argument("a", 4),), (result(4),), UNKNOWN)
        with pytest.raises(UnsupportedOp, match="no_such_op"):
            driver.compile(unknown, [device], self.options)


def _inputs(arguments: Sequence[Argument], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made: list[torch.Tensor] = []
    for each in arguments:
        if each.dtype == "int64":
            made.append(torch.randint(0, 4, each.layout.shape, generator=generator))
        else:
            made.append(torch.randn(each.layout.shape, generator=generator).to(getattr(torch, each.dtype)))
    return made
