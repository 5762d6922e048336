"""Programs compiled by Inductor. Compiling takes seconds to minutes, so the programs are small and most tests slow."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from programs import argument, collective, program, split
from samite.errors import ConfigError
from samite.hal.driver import Communicator, StateSlot
from samite.hal.program import Program, Result
from samite.ir.adam import adam
from samite.ir.sgd import sgd, sgd_momentum
from samite.layout import Layout
from samite.lowering import to_fx
from samite.mesh import Mesh
from samite.testing.conformance import ProgramSuite
from samite_cpu.closing import Length, close
from samite_cpu.driver import CpuDriver

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
MESH = Mesh(("dp",), (2,))


@pytest.mark.slow
class TestPrograms(ProgramSuite):
    driver_name = "cpu"
    options = {"mode": "inductor"}  # noqa: RUF012


class Slot(StateSlot):
    def __init__(self, value: torch.Tensor, spare: torch.Tensor | None = None) -> None:
        self.value, self._spare = value, spare

    def spare(self) -> torch.Tensor | None:
        return self._spare


class Doubling(Communicator):
    """Two ranks that always hold the same."""

    def all_reduce(self, x: torch.Tensor, axes: tuple[str, ...], reduce_type: str) -> torch.Tensor:
        return 2 * x


def step(w: torch.Tensor, x: torch.Tensor, whole: torch.Tensor) -> tuple[torch.Tensor, ...]:
    gradient = collective.all_reduce((w * x).tanh(), "dp", "sum")
    shard = collective.shard(whole, "dp", 0, 2)
    return w - gradient, (w * w).sum() + collective.axis_index("dp"), shard + torch.tensor([1.0, 2.0])


def a_program() -> Program:
    return program(
        step,
        [argument("w", split(3, 2), kind="state"), argument("x", split(3, 2)), argument("whole", split(4, 2))],
        [
            Result("w", "float32", split(3, 2), alias=0),
            Result("loss", "float32", Layout(())),
            Result("shard", "float32", split(4, 2, dp=0)),
        ],
        MESH,
    )


def test_everything_that_a_graph_reads_is_an_input() -> None:
    given = a_program()
    module, closed = close(to_fx(given), given)
    assert closed.places == (("dp",),)
    assert closed.replaced == (0,)
    assert len(closed.literals) == 1
    assert not module.graph.find_nodes(op="get_attr")
    ops = {str(node.target) for node in module.graph.nodes}
    assert "samite.axis_index.default" not in ops
    assert "samite.shard.default" not in ops
    assert "samite.all_reduce.default" in ops
    assert len(module.graph.find_nodes(op="placeholder")) == 3 + 1 + 1 + 1


def test_what_depends_on_the_rank_or_is_under_way_is_not_in_a_closed_graph() -> None:
    def length(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        under_way = collective.start(x, "all_reduce", "dp", [], [], "sum", 2, 0, [], -1)
        return x + 1, collective.wait(under_way) * collective.valid_length("dp", 7, [2])

    given = program(
        length,
        [argument("x", split(4, 2))],
        [Result("a", "float32", split(4, 2)), Result("b", "float32", split(4, 2))],
        MESH,
    )
    module, closed = close(to_fx(given), given)
    assert closed.lengths == (Length(("dp",), 7),)
    ops = {str(node.target) for node in module.graph.nodes}
    assert "samite.valid_length.default" not in ops
    assert "samite.wait.default" not in ops


def test_one_artifact_serves_all_ranks_and_writes_state_to_its_place() -> None:
    driver = CpuDriver()
    artifact = driver.compile(a_program(), driver.devices(), {"mode": "inductor"}).save()
    for rank in (0, 1):
        w, x, whole = torch.randn(3, 2), torch.randn(3, 2), torch.randn(4, 2)
        spare = torch.zeros(3, 2)
        slot = Slot(w, spare)
        bound = driver.load(artifact, driver.devices()).bind([slot], Doubling(), rank)  # type: ignore[arg-type]
        (loss, shard), event = bound.run([x, whole])
        event.wait()
        torch.testing.assert_close(loss, (w * w).sum() + rank)
        torch.testing.assert_close(shard, whole[2 * rank : 2 * rank + 2] + torch.tensor([1.0, 2.0]))
        assert slot.value is spare
        torch.testing.assert_close(spare, w - 2 * (w * x).tanh())


def test_updates_of_optimizers_are_fused_and_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def update(p: torch.Tensor, m: torch.Tensor, v: torch.Tensor, g: torch.Tensor, numbers: torch.Tensor) -> Any:
        q, b = sgd_momentum(p, g, m, numbers[:4], True, True, False)
        return *adam(q, g, b, v, torch.full([], 3.0), numbers, True, True, False), sgd(p, g, numbers[:4], True, True)

    values = [torch.rand(4, 2) for _ in range(4)] + [torch.tensor([0.1, 0.9, 0.8, 0.1, 0.2], dtype=torch.float64)]
    wanted = update(*values)
    state = [argument(name, split(4, 2), kind="state") for name in ("p", "m", "v")]
    inputs = [argument("g", split(4, 2)), argument("numbers", split(5), kind="scalar", dtype="float64")]
    results = [Result(a.name, "float32", split(4, 2), alias=i) for i, a in enumerate(state)]
    given = program(update, [*state, *inputs], [*results, Result("other", "float32", split(4, 2))], MESH)
    driver = CpuDriver()
    compiled = driver.compile(given, driver.devices(), {"mode": "inductor"})
    for module in ("adam.adam_into", "sgd.sgd_momentum_into", "sgd.sgd_into"):
        monkeypatch.setattr(f"samite.ir.{module}", None)
    slots = [Slot(value) for value in values[:3]]
    (other,), event = compiled.bind(slots, None, 0).run(values[3:])
    event.wait()
    for made, value in zip([*(slot.value for slot in slots), other], wanted, strict=True):
        torch.testing.assert_close(made, value)


def test_inductor_is_loaded_while_the_next_program_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr("samite_cpu.executable.warm_up", lambda: started.append("inductor"))
    driver, given = CpuDriver(), a_program()
    for later in ("aten", "inductor"):
        made = driver.compile(given, driver.devices()[:1], {"mode": "aten", "later": later})
        loaded = driver.load(made.save(), driver.devices()[:1])  # as ranks do that do not compile
        loaded.bind([Slot(torch.ones(2))], Doubling(), 0)
    assert started == ["inductor"]


def test_an_unknown_mode() -> None:
    driver = CpuDriver()
    with pytest.raises(ConfigError, match='mode "induct"') as caught:
        driver.compile(a_program(), driver.devices(), {"mode": "induct"})
    assert "inductor" in caught.value.help
