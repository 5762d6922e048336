"""Every collective of the dialect, between two processes, against its definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from samite.hal.driver import Driver
from samite.testing.conformance.ranks import WORLD, Ranks
from samite.testing.conformance.suite import Suite

__all__ = ["CollectiveSuite"]

REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "prod": torch.mul,
}
DTYPES = ("float32", "float64", "bfloat16", "int32", "int64", "bool")
SHAPES = ((4, 6), (2,), (0, 4), (4, 2, 8))


@dataclass(frozen=True)
class Case:
    """One call; `expect(a, b)` gives the results of rank 0 and rank 1, whose operands are a and b."""

    name: str
    verb: str
    arguments: tuple[Any, ...]
    expect: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def _reduced(kind: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return REDUCTIONS[kind](a, b).to(a.dtype)


def _both(whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return whole, whole


def _halves(whole: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    half = whole.shape[dim] // 2
    return whole.narrow(dim, 0, half), whole.narrow(dim, half, half)


def _exchanged(a: torch.Tensor, b: torch.Tensor, split: int, concat: int) -> tuple[torch.Tensor, torch.Tensor]:
    (a0, a1), (b0, b1) = _halves(a, split), _halves(b, split)
    return torch.cat([a0, b0], concat), torch.cat([a1, b1], concat)


X = ("x",)
CASES = (
    *(
        Case(f"all_reduce_{kind}", "all_reduce", (X, kind), lambda a, b, k=kind: _both(_reduced(k, a, b)))
        for kind in REDUCTIONS
    ),
    *(
        Case(
            f"reduce_scatter_{kind}", "reduce_scatter", (X, 0, kind), lambda a, b, k=kind: _halves(_reduced(k, a, b), 0)
        )
        for kind in REDUCTIONS
    ),
    Case("reduce_scatter_last", "reduce_scatter", (X, 1, "sum"), lambda a, b: _halves(_reduced("sum", a, b), 1)),
    Case("all_gather", "all_gather", (X, 0), lambda a, b: _both(torch.cat([a, b]))),
    Case("all_gather_last", "all_gather", (X, 1), lambda a, b: _both(torch.cat([a, b], 1))),
    Case("all_to_all", "all_to_all", (X, 0, 1), lambda a, b: _exchanged(a, b, 0, 1)),
    Case("all_to_all_back", "all_to_all", (X, 1, 0), lambda a, b: _exchanged(a, b, 1, 0)),
    Case("all_to_all_same", "all_to_all", (X, 1, 1), lambda a, b: _exchanged(a, b, 1, 1)),
    Case("permute_swap", "permute", (X, [(0, 1), (1, 0)]), lambda a, b: (b, a)),
    Case("permute_shift", "permute", (X, [(0, 1)]), lambda a, b: (torch.zeros_like(a), a)),
    Case("permute_stay", "permute", (X, [(0, 0), (1, 1)]), lambda a, b: (a, b)),
    Case("permute_nothing", "permute", (X, []), lambda a, b: (torch.zeros_like(a), torch.zeros_like(b))),
    Case("all_reduce_alone", "all_reduce", (("one",), "sum"), lambda a, b: (a, b)),
    Case("all_gather_alone", "all_gather", (("one",), 0), lambda a, b: (a, b)),
    Case("all_gather_two_axes", "all_gather", (("one", "x"), 0), lambda a, b: _both(torch.cat([a, b]))),
)


class CollectiveSuite(Suite):
    """Two processes, started once for the class. Needs `Driver.communicator`; skips where collectives are native."""

    cases: ClassVar[Sequence[str]] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")

    _ranks: ClassVar[Ranks | None] = None

    @pytest.fixture
    def ranks(self, driver: Driver, request: pytest.FixtureRequest) -> Ranks:
        """The processes, started by the first test that needs them and ended with the class."""
        cls = type(self)
        if driver.collectives != "communicator":
            pytest.skip(f"collectives of {self.driver_name}: {driver.collectives}")
        if cls._ranks is None:
            cls._ranks = Ranks(self.driver_name)
            request.node.getparent(pytest.Class).addfinalizer(cls._end)
        return cls._ranks

    @classmethod
    def _end(cls) -> None:
        assert cls._ranks is not None
        cls._ranks.close()
        cls._ranks = None

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_computes(self, ranks: Ranks, case: Case, dtype: str) -> None:
        self.check(ranks, case, *(_operand((4, 6), dtype, seed) for seed in range(2)))

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_takes_any_shape(self, ranks: Ranks, shape: tuple[int, ...]) -> None:
        for case in CASES:
            if len(shape) > 1 or 1 not in case.arguments:  # dim 1 is there
                self.check(ranks, case, *(_operand(shape, "float32", seed) for seed in range(2)))

    def test_takes_operands_that_are_not_contiguous(self, ranks: Ranks) -> None:
        for case in CASES:
            self.check(ranks, case, *(_operand((6, 4), "float32", seed).t() for seed in range(2)))

    def test_reduces_what_has_no_dims(self, ranks: Ranks) -> None:
        results = ranks.call("all_reduce", [(torch.tensor(float(rank + 1)), X, "sum") for rank in range(2)])
        assert [result.item() for result in results] == [3.0, 3.0]

    def test_carries_large_operands(self, ranks: Ranks) -> None:
        for case in CASES[:1] + CASES[-3:]:
            self.check(ranks, case, *(_operand((512, 1024), "float32", seed) for seed in range(2)))

    def test_keeps_nan(self, ranks: Ranks) -> None:
        operand = torch.tensor([float("nan"), 1.0])
        for result in ranks.call("all_reduce", [(operand, X, "sum")] * WORLD.size):
            assert result.isnan().tolist() == [True, False]

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_starts_and_is_waited_for(self, ranks: Ranks, case: Case) -> None:
        operands = [_operand((4, 6), "float32", seed) for seed in range(2)]
        results = ranks.call("start", [(case.verb, operand, *case.arguments) for operand in operands])
        for result, wanted in zip(results, case.expect(*operands), strict=True):
            torch.testing.assert_close(result.cpu(), wanted)

    def test_reduces_by_the_algorithms_that_it_names(self, driver: Driver, ranks: Ranks) -> None:
        for algorithm in driver.algorithms:
            for kind in REDUCTIONS:
                how = (X, kind, algorithm, 64)
                case = Case(f"{algorithm} {kind}", "all_reduce", how, lambda a, b, k=kind: _both(_reduced(k, a, b)))
                for shape in (*SHAPES, (1,), (1001,)):
                    operands = [_operand(shape, "float32", seed) for seed in range(2)]
                    self.check(ranks, case, *operands)
                    for result in ranks.call("start", [("all_reduce", operand, *how) for operand in operands]):
                        torch.testing.assert_close(result.cpu(), _reduced(kind, *operands))

    def test_barrier(self, ranks: Ranks) -> None:
        assert ranks.call("barrier", [()] * WORLD.size) == [None, None]

    def check(self, ranks: Ranks, case: Case, a: torch.Tensor, b: torch.Tensor) -> None:
        results = ranks.call(case.verb, [(operand, *case.arguments) for operand in (a, b)])
        for rank, (result, wanted) in enumerate(zip(results, case.expect(a, b), strict=True)):
            torch.testing.assert_close(result.cpu(), wanted, msg=lambda text, r=rank: f"{case.name}, rank {r}: {text}")


def _operand(shape: Sequence[int], dtype: str, seed: int) -> torch.Tensor:
    whole = torch.randint(
        -4, 5, tuple(shape), generator=torch.Generator().manual_seed(seed)
    )  # small: products are exact
    return whole > 0 if dtype == "bool" else whole.to(getattr(torch, dtype))
