"""The parts of the benchmarks on tiny sizes: that they measure what they say, not how long it takes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from benchmarks import (
    collectives,
    compile_time,
    dispatch,
    eager,
    gpt_step,
    import_time,
    pipeline,
    predicted,
    quiet,
    report,
    second_start,
)
from benchmarks.compile_once import compile_repeatedly
from benchmarks.peers import Absent, Peers, Place, Side, timed
from benchmarks.pipeline_ideal import Functions, ideal
from benchmarks.quiet import Samples
from benchmarks.results import ROOT, Conditions, Figure, Goal, Result
from benchmarks.rounds import Measured, check_losses, measure
from benchmarks.sides import SIDES, one_process
from benchmarks.tables import figures, goals, markdown, number
from benchmarks.workload import Workload
from hypothesis import given
from hypothesis import strategies as st

from samite.mesh import Mesh
from samite.runtime.lockstep import Lockstep

TINY = Workload(layers=1, dim=8, heads=2, vocab=16, block=4, batch=4)
CONDITIONS = Conditions(
    "python -m benchmarks.tiny", "2026-01-01", {"processor": "a core", "cores": 2}, {"torch": "2.13.0"}
)
PHASES = ("forward", "backward_input", "backward_weight")
COMPARED = Result(
    "gpt_step",
    CONDITIONS,
    [Figure("slow", "ms", [9.0, 10.0, 11.0]), Figure("fast", "ms", [2.0, 3.0, 2.5], beside="slow")],
    [Goal("fast against slow", "at least", 3.5, "×", 4.0), Goal("fast", "at most", 1.0, "ms", 2.5)],
    {"faster": "not made yet"},
    {"losses": [1.0, 0.5]},
)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_half_of_the_samples_lie_around_the_median(samples: list[float]) -> None:
    figure = Figure("any", "s", samples)
    low, high = figure.quartiles
    assert min(samples) <= low <= figure.median <= high <= max(samples)
    for inside in (sum(sample >= low for sample in samples), sum(sample <= high for sample in samples)):
        assert inside >= 0.75 * len(samples) - 1


def test_a_figure_needs_a_sample() -> None:
    with pytest.raises(ValueError, match="no samples of nothing"):
        Figure("nothing", "s", [])


@pytest.mark.parametrize(
    "bound, figure, reached",
    [("at least", 3.5, True), ("at least", 3.4, False), ("at most", 3.5, True), ("at most", 3.6, False)],
)
def test_goals_include_their_bound(bound: Any, figure: float, reached: bool) -> None:
    assert Goal("", bound, 3.5, "×", figure).reached is reached


def test_results_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "gpt_step.json"
    COMPARED.write(path)
    assert Result.read(path) == COMPARED
    assert '"samples": [ 9.0, 10.0, 11.0 ]' in path.read_text()  # a line, for readers of changes


def test_conditions_name_the_command_and_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/benchmarks/gpt_step.py", "--rounds", "3"])
    here = Conditions.here("gpt_step")
    assert here.command == "python -m benchmarks.gpt_step --rounds 3"
    assert here.machine["cores"] >= 1
    assert here.versions["torch"] != "not installed"
    assert str(ROOT) not in repr(here)


@pytest.mark.parametrize(
    "value, text",
    [(0.01234, "0.0123"), (4.567, "4.57"), (28.94, "28.9"), (289.4, "289"), (1234.5, "1,234"), (0, "0.00")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_tables_give_spread_and_ratio() -> None:
    header, lines = figures(COMPARED)
    assert header == ["", "median, ms", "middle half", "samples", "speed"]
    assert lines == [["slow", "10.0", "9.50–10.5", "3", ""], ["fast", "2.50", "2.25–2.75", "3", "4.00 × slow"]]
    assert goals(COMPARED.goals)[1] == [
        ["fast against slow", "≥ 3.5 ×", "4.00 ×", "yes"],
        ["fast", "≤ 1 ms", "2.50 ms", "no"],
    ]


def test_tables_of_series_have_a_column_each() -> None:
    found = [
        Figure("import", "s", [1.0], "cold"),
        Figure("place", "s", [2.0], "cold"),
        Figure("place", "s", [3.0], "warm"),
    ]
    rows = figures(Result("compile_time", CONDITIONS, found))
    assert rows == (["median, s", "cold", "warm"], [["import", "1.00", ""], ["place", "2.00", "3.00"]])
    assert markdown(rows)[1] == "| --- | ---: | ---: |"


def test_the_page_says_what_is_there_and_what_is_not() -> None:
    text = report.page({"gpt_step": COMPARED})
    for part in ("| fast | 2.50 |", "faster: absent (not made yet)", "losses: 1.0, 0.5", "torch 2.13.0", "| ≥ 3.5 × |"):
        assert part in text
    assert "Not measured yet: `python -m benchmarks.dispatch`" in text
    assert "benchmarks.gpt_step`" not in text


def test_the_page_is_made_of_the_results() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.page(report.stored()), "python -m benchmarks.report"


def test_a_result_of_no_benchmark_is_refused(tmp_path: Path) -> None:
    COMPARED.write(tmp_path / "gtp_step.json")
    with pytest.raises(ValueError, match=r"gtp_step\.json is the result of no benchmark: gpt_step"):
        report.stored(tmp_path)


def test_eager_figures_are_compared() -> None:
    chains = {name: [2.0] if name.startswith("Samite") else [8.0] for name in eager.CHAINS}
    gpt = {"DTensor": Samples([30.0, 90.0, 30.0], [0.0, 1.5, 0.9]), "Samite": Samples([20.0], [0.0])}
    result = eager.collect(chains, gpt, {"whole": "no strategy"}, CONDITIONS, TINY)
    assert [goal.figure for goal in result.goals] == [0.25, 0.25, 0.25, 1.5]
    assert any("30.0 ms (of 3 steps, not only those during which" in fact for fact in result.facts.values())
    assert all(goal.reached for goal in result.goals)
    assert result.figure("Samite mm").beside == "DTensor mm"


def test_steps_that_others_disturb_do_not_count_where_enough_are_left() -> None:
    chains = {name: [1.0] for name in eager.CHAINS}
    gpt = {
        "DTensor": Samples([300.0, *[30.0] * 10], [1.5, *[0.1] * 10]),
        "Samite": Samples([200.0, *[10.0] * 10], [0.4, *[0.0] * 10]),
    }
    result = eager.collect(chains, gpt, {}, CONDITIONS, TINY)
    assert result.goals[-1].figure == 3.0
    assert any("(of the 10 of 11 steps during which" in fact for fact in result.facts.values())


def test_what_others_take_of_the_machine_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with quiet.others([]) as cores:
        pass
    assert cores[0] >= 0
    ticks, own, seconds = iter([100, 180]), iter([10, 30]), iter([0.0, 2.0])
    monkeypatch.setattr(quiet, "_busy", lambda: next(ticks))
    monkeypatch.setattr(quiet, "_own", lambda pids: next(own))
    monkeypatch.setattr(quiet, "perf_counter", lambda: next(seconds))
    with quiet.others([]) as cores:
        pass
    assert cores == [60 / os.sysconf("SC_CLK_TCK") / 2.0]


def test_eager_chains_run_on_both_libraries() -> None:
    samples = eager.measure_chains(TINY, rounds=1)
    assert list(samples) == eager.CHAINS
    assert all(microseconds > 0 for found in samples.values() for microseconds in found)


def test_losses_must_agree() -> None:
    check_losses("close", [1.0, 0.5], [1.0005, 0.5])
    for losses in ([1.0, 0.502], [1.0, float("nan")]):
        with pytest.raises(RuntimeError, match="far computes something else"):
            check_losses("far", losses, [1.0, 0.5])


def test_unknown_sides_are_refused(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="ddq is none of eager, ddp"):
        gpt_step.main(side=["ddp", "ddq"], output=tmp_path / "x.json")
    assert not list(tmp_path.iterdir())


def test_steps_train() -> None:
    losses = timed(one_process(TINY, Place(0, 1, "")), 5).losses
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]


@pytest.mark.multiprocess
def test_sides_compute_the_same() -> None:
    sides = {key: SIDES[key] for key in ("eager", "ddp", "samite-dp")}
    result = gpt_step.compare(sides, TINY, rounds=2, steps=2, warmup=3, conditions=CONDITIONS)
    assert [len(f.samples) for f in result.figures] == [4, 4, 4]
    assert [g.what for g in result.goals] == ["Samite data parallel, ATen against DistributedDataParallel"]
    assert not result.absent


@pytest.mark.multiprocess
def test_what_a_side_raises_ends_the_run_unless_it_may_be_absent() -> None:
    broken = partial(one_process, option=1)
    for side, error in (
        (Side("broken", broken), RuntimeError),
        (Side("broken", broken, absent_if=(OSError,)), RuntimeError),
        (Side("missing", broken, absent_if=(TypeError,)), Absent),
    ):
        peers = Peers(side, TINY)
        try:
            with pytest.raises(error, match=r"TypeError: .*unexpected keyword argument 'option'"):
                peers.wait_built()
        finally:
            peers.close()


@pytest.mark.multiprocess
def test_a_side_that_dies_is_reported() -> None:
    peers = Peers(Side("alone", one_process), TINY)
    try:
        peers.wait_built()
        assert len(peers.run(2).losses) == 2
        (process,) = peers._processes.values()
        process.kill()
        process.join()
        with pytest.raises(RuntimeError, match=r"alone, 0: ended with exit code -9"):
            peers.run(1)
    finally:
        peers.close()


def test_compiling_is_measured_by_pass() -> None:
    measured = compile_repeatedly(TINY, warm=1)
    assert measured.operations > measured.calls > 100
    cold, warm = measured.runs
    assert list(cold) == list(warm)
    assert {"import", "place", "partition", "verify"} <= cold.keys()
    result = compile_time.collect({4: [vars(measured)]}, CONDITIONS)
    assert result.figure("place + partition", "4 layers, cold").median == cold["place"] + cold["partition"]  # type: ignore[union-attr]
    assert [g.target for g in result.goals] == [0.4]


def test_dispatch_is_what_the_workers_do_not_account_for() -> None:
    workers = Lockstep().start(Mesh(("d",), (2,)), {})
    over, own = dispatch.overheads(workers, buffers=3, steps=5)
    assert len(over) == len(own) == 5
    assert min(own) > 0
    assert min(over) > 0
    result = dispatch.collect({(2, 3): (over, own), (4, 3): (over, own)}, {"the call": [0.1]}, CONDITIONS)
    assert [goal.figure for goal in result.goals] == [statistics.median(over)]  # four ranks do not fit on two cores
    assert "4 ranks" in result.facts


def test_collectives_are_timed_on_their_ranks() -> None:
    nested = Mesh(("host", "core"), (2, 2))
    program = collectives.reductions(nested, [(10,), (3, 3)], "auto", 2, bucketed=False)
    assert program.module.count("dist.reduce_scatter") == 4, "hierarchical"
    bucketed = collectives.reductions(Mesh(("d",), (2,)), [(10,), (3, 3)], "tree", 1, bucketed=True)
    assert bucketed.module.count("dist.all_reduce") == 1
    for made in (program, bucketed):
        workers = Lockstep().start(made.mesh, {})
        assert min(collectives.seconds(workers, made, 1, samples=2)) > 0
    sizes = {(2, transport, "auto", "64 KB"): us for transport, us in (("shared memory", [10.0]), ("gloo", [80.0]))}
    result = collectives.collect(sizes, {("gloo", "in buckets"): [2.0, 4.0, 3.0]}, CONDITIONS)
    assert [(goal.figure, goal.reached) for goal in result.goals] == [(8.0, True)]
    assert result.facts["gradients in buckets, gloo"] == "3.00 ms"


def test_predictions_are_held_against_medians() -> None:
    result = predicted.collect({"dp, d 128": (40.0, [49.0, 50.0, 90.0])}, {}, CONDITIONS)
    assert [(round(goal.figure), goal.reached) for goal in result.goals] == [(20, True)]
    assert result.figure("dp, d 128", "predicted").median == 40.0  # type: ignore[union-attr]


def test_imports_are_timed_in_interpreters_of_their_own() -> None:
    assert 0 < import_time.seconds("json") < import_time.seconds("json, time; time.sleep(0.5)")
    with pytest.raises(subprocess.CalledProcessError):
        import_time.seconds("no_such_module")
    result = import_time.collect([1.0, 2.0], [1.25, 2.5], CONDITIONS)
    assert result.goals[0].figure == 0.375


def test_second_start_compares_three_starts() -> None:
    result = second_start.collect({start: [3.0, 1.0, 2.0] for start in second_start.STARTS}, CONDITIONS)
    assert [figure.series for figure in result.figures] == list(second_start.STARTS)
    assert [goal.reached for goal in result.goals] == [True]


PIPELINED = Workload(layers=2, dim=8, heads=2, vocab=16, block=4, batch=8)


@pytest.mark.multiprocess
def test_pipelines_train_as_one_process_does() -> None:
    sides = {key: pipeline.SIDES[key] for key in ("one", "torch", "aten")}
    turns: list[None] = []
    measured = measure(sides, PIPELINED, rounds=2, steps=2, warmup=3, between=lambda: turns.append(None))
    assert {key: len(samples) for key, samples in measured.samples.items()} == {"one": 4, "torch": 4, "aten": 4}
    assert (len(measured.losses), len(turns), measured.absent) == (3, 2, {})


def test_the_ideal_of_a_pipeline_is_simulated_from_its_functions() -> None:
    functions = Functions(PIPELINED, "aten")
    assert functions.ideal() > 0
    made = functions._pipelines[-1]
    unit = {n: [0.001] * (made.microbatches if program.each else 1) for n, program in enumerate(made.programs)}
    phases = [program.phase for program in made.programs]
    assert phases.count("forward") == phases.count("backward_weight") == 2
    assert phases.count("backward_input") == 1
    inside = {n: unit[n] if made.programs[n].phase in PHASES else [0.0] for n in unit}
    assert ideal(made, inside) == pytest.approx(0.001 * (1 + 3 * made.microbatches))  # stage 1 begins one late
    outside = {n: unit[n] if made.programs[n].phase.startswith("update") else [0.0] for n in unit}
    assert ideal(made, outside) == pytest.approx(0.001)


def test_pipelines_are_compared_with_torch_and_their_ideal() -> None:
    samples = {"one": [9.0], "torch": [10.0], "aten": [8.0]}
    measured = Measured(samples, {"inductor": "no compiler"}, [1.0, 0.5])
    result = pipeline.collect(measured, {"aten": [5.0, 6.0, 7.0]}, CONDITIONS, PIPELINED)
    assert [(goal.figure, goal.reached) for goal in result.goals] == [(1.25, True), (8 / 6, False)]
    assert result.absent == {"Samite, Inductor": "no compiler"}
