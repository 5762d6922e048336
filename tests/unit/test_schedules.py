from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samite.errors import ScheduleError
from samite.schedules import (
    SCHEDULES,
    Action,
    Event,
    Start,
    Task,
    Transfer,
    Wait,
    Work,
    check,
    check_transfers,
    choose,
    generate,
    programs,
    simulate,
    timeline_of,
)


def forward(stage: int) -> Task:
    return Task(stage, "forward")


def backward_input(stage: int) -> Task:
    return Task(stage, "backward_input")


def backward_weight(stage: int) -> Task:
    return Task(stage, "backward_weight")


def chain(stages: int, ranks: int, microbatches: int, *, whole: bool = False, skips: tuple[int, ...] = ()) -> Work:
    """A pipeline whose every phase takes one unit a rank. `whole`: stage 0 has a backward_input too.

    Each stage of `skips` also reads the activations of stage 0, and gives it a gradient.
    """
    unit = ranks / stages
    needs: dict[Task, frozenset[Task]] = {}
    seconds: dict[Task, float] = {}
    for s in range(stages):
        needs[forward(s)] = frozenset({forward(s - 1)} if s else set()) | {forward(0) for k in skips if k == s > 0}
        gradients = {backward_input(s + 1)} if s + 1 < stages else set()
        if s == 0:
            gradients |= {backward_input(k) for k in skips if k > 0}
        own = {backward_input(s)} if s or whole else set()
        for task in own:
            needs[task] = frozenset({forward(s)} | gradients)
        needs[backward_weight(s)] = frozenset({forward(s)} | gradients | own)
        seconds |= {forward(s): unit, backward_weight(s): unit if own else 2 * unit} | dict.fromkeys(own, unit)
    saved = {forward(s): {backward_weight(s): 1} for s in range(stages)}
    return Work(stages, ranks, microbatches, needs, seconds, saved=saved)


def kinds(work: Work) -> list[str]:
    return [kind for kind in SCHEDULES if kind != "interleaved" or work.stages > work.ranks]


def limits(kind: str, work: Work) -> list[int]:
    """By rank, how many pairs of a stage and a microbatch may be begun and not finished."""
    stages, ranks, m = work.stages, work.ranks, work.microbatches
    if kind == "interleaved":
        return [2 * (ranks - r - 1) + stages - ranks + 1 for r in range(ranks)]
    most: dict[str, Callable[[int], int]] = {
        "gpipe": lambda s: m,
        "1f1b": lambda s: min(m, stages - s),
        "zero_bubble": lambda s: min(m, stages - s // ranks * ranks),
    }
    return [sum(most[kind](s) for s in range(r, stages, ranks)) for r in range(ranks)]


@st.composite
def works(draw: st.DrawFn) -> Work:
    """Chains with stages that skip, of random costs, wires and sizes, some without backward or with part of one."""
    stages = draw(st.integers(1, 6))
    ranks = draw(st.sampled_from([r for r in range(1, stages + 1) if stages % r == 0]))
    skips = draw(st.sets(st.integers(1, 5).filter(lambda s: s < stages) if stages > 1 else st.nothing()))
    work = chain(stages, ranks, draw(st.integers(1, 9)), whole=draw(st.booleans()), skips=tuple(skips))
    needs = work.needs
    frozen = draw(st.sampled_from([0, 0, 0, 1, stages]))  # stages, from the first, without backward
    if frozen:
        gone = {task for task in needs if task.stage < frozen and task.phase != "forward"} | {backward_input(frozen)}
        needs = {task: needed - gone for task, needed in needs.items() if task not in gone}
    cost = st.sampled_from([0.0, 0.5, 1.0, 3.0]) | st.floats(0, 10)
    return replace(
        work,
        needs=needs,
        seconds={task: draw(cost) for task in needs},
        sends={(need, task): draw(cost) for task, needed in needs.items() for need in needed},
        saved={forward(s): {backward_weight(s): 1} for s in range(stages) if backward_weight(s) in needs},
    )


def critical_path(work: Work) -> float:
    """The longest way of one microbatch."""

    def end(task: Task) -> float:
        return work.seconds[task] + max(
            (end(need) + work.seconds_between(need, task) for need in work.needs[task]), default=0.0
        )

    return max(map(end, work.needs))


@given(works(), st.data())
@settings(max_examples=150, deadline=None)
def test_every_schedule_is_right_and_no_faster_than_can_be(work: Work, data: st.DataObject) -> None:
    for kind in kinds(work):
        actions = generate(kind, work)
        check(actions, work)
        assert actions == generate(kind, work)
        done = simulate(actions, work)
        load = [
            work.microbatches * sum(work.seconds[task] for task in work.tasks_of(rank)) for rank in range(work.ranks)
        ]
        assert done.busy == pytest.approx(load)
        assert done.seconds >= max(critical_path(work), *load) * (1 - 1e-9)
        assert 0 <= done.bubble <= 1
        assert all(peak <= most for peak, most in zip(done.peak_bytes, limits(kind, work), strict=True))
        ready = [0.0] * work.ranks
        for span in done.spans:
            assert span.start >= ready[span.rank]
            ready[span.rank] = span.start + span.seconds
        assert max(ready) == done.seconds

        # Any other list of as many actions, and any other order of two that depend on each other, is refused.
        i = data.draw(st.integers(0, len(actions) - 1))
        for wrong in (actions[:i] + actions[i + 1 :], actions[: i + 1] + actions[i:]):
            with pytest.raises(ScheduleError):
                check(wrong, work)
        for j, user in enumerate(actions[i + 1 :], i + 1):
            if actions[i].task in work.needs[user.task] | {user.task} and user.microbatch == actions[i].microbatch:
                swapped = list(actions)
                swapped[i], swapped[j] = swapped[j], swapped[i]
                with pytest.raises(ScheduleError):
                    check(swapped, work)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_bubbles_and_memory_at_unit_cost(ranks: int, whole: bool) -> None:
    for microbatches in range(1, 13):
        work = chain(ranks, ranks, microbatches, whole=whole)
        for kind, idle in (("gpipe", 2), ("1f1b", 2), ("zero_bubble", 1)):
            done = simulate(generate(kind, work), work)
            if kind != "zero_bubble" or microbatches >= ranks:
                assert done.seconds == 3 * microbatches + idle * (ranks - 1)
                assert done.bubble == pytest.approx(idle * (ranks - 1) / (3 * microbatches + idle * (ranks - 1)))
            assert list(done.peak_bytes) == limits(kind, work)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("ranks, each", [(1, 2), (2, 2), (2, 3), (3, 2), (4, 2), (4, 3)])
def test_interleaving_divides_the_bubble_by_the_stages_of_a_rank(ranks: int, each: int, whole: bool) -> None:
    for groups in (1, 2, 3):
        work = chain(ranks * each, ranks, ranks * groups, whole=whole)
        done = simulate(generate("interleaved", work), work)
        chunks = 3 * each * work.microbatches
        assert done.bubble == pytest.approx(2 * (ranks - 1) / (chunks + 2 * (ranks - 1)))
        if groups > 2:
            assert list(done.peak_bytes) == limits("interleaved", work)


def test_one_forward_one_backward() -> None:
    """The order of rank 0 of two, as in the figure of the paper: warm up, alternate, cool down."""
    work = chain(2, 2, 4)
    mine = [(a.phase, a.microbatch) for a in generate("1f1b", work) if a.rank == 0]
    f, w = "forward", "backward_weight"
    assert mine == [(f, 0), (f, 1), (w, 0), (f, 2), (w, 1), (f, 3), (w, 2), (w, 3)]


def test_gpipe_runs_no_backward_before_all_forwards() -> None:
    work = replace(chain(3, 3, 5), seconds={task: 1.0 + 5 * (task == forward(0)) for task in chain(3, 3, 5).needs})
    for rank in range(3):
        phases = [a.phase == "forward" for a in generate("gpipe", work) if a.rank == rank]
        assert phases == sorted(phases, reverse=True)


def test_without_backward_there_is_nothing_to_hold() -> None:
    needs = {forward(s): frozenset({forward(s - 1)} if s else ()) for s in range(3)}
    work = Work(3, 3, 4, needs, dict.fromkeys(needs, 1.0))
    first, *others = [generate(kind, work) for kind in kinds(work)]
    assert all(other == first for other in others)
    assert simulate(first, work).seconds == 4 + 2
    assert choose(work)[0] == "gpipe"


def test_messages_arrive_after_their_time_on_the_wire() -> None:
    needs = {forward(0): frozenset[Task](), forward(1): frozenset({forward(0)})}
    work = Work(2, 2, 2, needs, {forward(0): 1.0, forward(1): 2.0}, sends={(forward(0), forward(1)): 0.5})
    done = simulate(generate("1f1b", work), work)
    assert [(span.rank, span.name, span.start, span.seconds) for span in done.spans] == [
        (0, "forward of stage 0, microbatch 0", 0.0, 1.0),
        (0, "forward of stage 0, microbatch 1", 1.0, 1.0),
        (1, "forward of stage 1, microbatch 0", 1.5, 2.0),
        (1, "forward of stage 1, microbatch 1", 3.5, 2.0),
    ]
    alone = replace(work, ranks=1, microbatches=1)
    assert simulate(generate("1f1b", alone), alone).seconds == 3  # nothing is sent on one rank


def test_a_timeline_has_a_lane_a_rank_and_the_chain_that_decides() -> None:
    needs = {forward(0): frozenset[Task](), forward(1): frozenset({forward(0)})}
    work = Work(2, 2, 2, needs, {forward(0): 1.0, forward(1): 2.0}, sends={(forward(0), forward(1)): 0.5})
    drawn = timeline_of(simulate(generate("1f1b", work), work), work)
    assert [(lane.rank, [(s.start, s.duration, s.critical) for s in lane.spans]) for lane in drawn.lanes] == [
        (0, [(0.0, 1.0, True), (1.0, 1.0, False)]),
        (1, [(1.5, 2.0, True), (3.5, 2.0, True)]),
    ]
    assert drawn.seconds == 5.5
    assert drawn.critical()[0].name == "forward of stage 0, microbatch 0"


@given(works())
@settings(max_examples=50, deadline=None)
def test_the_chain_that_decides_is_as_long_as_the_schedule(work: Work) -> None:
    drawn = timeline_of(simulate(generate("1f1b", work), work), work)
    chain_of = drawn.critical()
    assert chain_of[0].start == 0
    assert chain_of[-1].end == drawn.seconds
    without_wires = replace(work, sends={})
    drawn = timeline_of(simulate(generate("1f1b", without_wires), without_wires), without_wires)
    assert sum(span.duration for span in drawn.critical()) == pytest.approx(drawn.seconds)


def test_memory_is_held_from_the_writer_to_the_reader() -> None:
    work = replace(chain(2, 2, 2), saved={forward(0): {backward_weight(0): 10, forward(1): 3}, forward(1): {}})
    assert simulate(generate("gpipe", work), work).peak_bytes == (20, 3)


def test_a_result_is_held_beside_the_operand_that_goes() -> None:
    work = replace(chain(2, 1, 1), saved={forward(0): {forward(1): 5}, forward(1): {backward_weight(1): 7}})
    assert simulate(generate("gpipe", work), work).peak_bytes == (12,)


def test_the_fastest_that_fits_is_chosen() -> None:
    work = chain(4, 4, 8)
    assert choose(work)[0] == "zero_bubble"
    assert choose(chain(8, 4, 8))[0] == "zero_bubble"
    slow = replace(work, seconds=work.seconds | {backward_weight(3): 9.0, backward_input(3): 0.0})
    kind, actions, done = choose(slow)
    assert kind == "1f1b", "zero_bubble gains nothing and holds as much, gpipe holds more"
    assert (actions, done) == (generate("1f1b", slow), simulate(generate("1f1b", slow), slow))
    assert done.seconds <= simulate(generate("zero_bubble", slow), slow).seconds


def test_times_that_rounding_makes_differ_are_equal() -> None:
    work = replace(chain(1, 1, 3), seconds={forward(0): 0.1, backward_weight(0): 0.2})
    gpipe, one = (simulate(generate(kind, work), work) for kind in ("gpipe", "1f1b"))
    assert gpipe.seconds < one.seconds
    assert choose(work)[0] == "1f1b"


def test_memory_limits_the_choice() -> None:
    work = chain(4, 4, 8)
    tight = replace(work, saved={forward(s): {backward_weight(s): 1 if s else 2} for s in range(4)})
    held = {kind: max(simulate(generate(kind, tight), tight).peak_bytes) for kind in kinds(tight)}
    assert held == {"gpipe": 16, "1f1b": 8, "zero_bubble": 8}
    late = replace(work, saved={forward(3): {backward_weight(3): 1}})
    assert choose(late, memory_per_rank=4)[0] == "zero_bubble"
    assert choose(late, memory_per_rank=3)[0] == "1f1b"
    with pytest.raises(
        ScheduleError, match=r"1f1b holds least, and saves 8 bytes on one rank \(1 more than the 7 that"
    ):
        choose(tight, memory_per_rank=7)


@pytest.mark.parametrize("ranks, stages", [(2, 2), (4, 4), (2, 4), (3, 6)])
def test_transfers_in_global_order_do_not_deadlock_and_naive_ones_do(ranks: int, stages: int) -> None:
    work = chain(stages, ranks, 2 * ranks)
    for kind in kinds(work):
        actions = generate(kind, work)
        check_transfers(programs(actions, work))
        if kind != "gpipe":
            with pytest.raises(ScheduleError, match="the transfers deadlock: rank 0 waits for the message of"):
                check_transfers(naive(actions, work))


def naive(actions: tuple[Action, ...], work: Work) -> list[list[Event]]:
    """Receive just before the use, send just after the run."""
    ranks: list[list[Event]] = [[] for _ in range(work.ranks)]
    received: set[Transfer] = set()
    for action in actions:
        for need in sorted(work.needs[action.task]):
            transfer = Transfer(Action(work.rank(need), *need, action.microbatch), action.rank)
            if transfer.action.rank != action.rank and transfer not in received:
                received.add(transfer)
                ranks[action.rank] += [Start(transfer), Wait(transfer)]
        ranks[action.rank].append(action)
        readers = {work.rank(user) for user, needed in work.needs.items() if action.task in needed}
        ranks[action.rank] += [Start(Transfer(action, rank)) for rank in sorted(readers - {action.rank})]
    return ranks


def test_programs_start_at_both_ends_and_wait_at_the_first_use() -> None:
    work = chain(2, 2, 1)
    run = {task: Action(work.rank(task), *task, 0) for task in work.needs}
    there, back = Transfer(run[forward(0)], 1), Transfer(run[backward_input(1)], 0)
    assert programs(generate("1f1b", work), work) == (
        (run[forward(0)], Start(there), Start(back), Wait(back), run[backward_weight(0)]),
        (
            *(Start(there), Wait(there), run[forward(1)]),
            *(run[backward_input(1)], Start(back), run[backward_weight(1)]),
        ),
    )


def test_a_rank_receives_and_awaits_once_what_several_of_its_tasks_read() -> None:
    work = chain(4, 2, 3, skips=(3,))  # the forwards of stages 1 and 3, both of rank 1, read that of stage 0
    events = programs(generate("interleaved", work), work)[1]
    received = [e.transfer for e in events if isinstance(e, Start) and e.transfer.to == 1]
    assert len(received) == len(set(received))
    assert sorted(e.transfer for e in events if isinstance(e, Wait)) == sorted(received)


def test_a_wait_for_what_nobody_starts_is_a_deadlock() -> None:
    with pytest.raises(ScheduleError, match="rank 1 waits for the message of forward of stage 0, microbatch 0 from"):
        check_transfers([[], [Wait(Transfer(Action(0, 0, "forward", 0), 1))]])


@pytest.mark.parametrize(
    "change, what",
    [
        (lambda a: a[:-1], "the backward_weight of stage 1 is missing for microbatch 2"),
        (lambda a: a[1:], "forward of stage 1, microbatch 0 comes before the forward of stage 0"),
        (
            lambda a: [one for one in a if one != (0, 0, "backward_weight", 1)],
            "microbatch 2 comes where microbatch 1 should",
        ),
        (lambda a: a + a[-1:], "microbatch 2 comes where"),
        (lambda a: (*a, a[-1]._replace(microbatch=3)), "there are 3 microbatches"),
        (lambda a: (*a, Action(0, 0, "backward_input", 0)), "there is no such task"),
        (lambda a: (a[0]._replace(rank=1), *a[1:]), "is on rank 1"),
        (lambda a: a[::-1], "comes where"),
        (lambda a: sorted(a, key=lambda one: -one.stage), "forward of stage 1, microbatch 0 comes before the forward"),
    ],
)
def test_wrong_schedules_are_refused(change: Callable[[Any], Any], what: str) -> None:
    work = chain(2, 2, 3)
    actions = generate("1f1b", work)
    for reject in (check, simulate):
        with pytest.raises(ScheduleError, match=what):
            reject(change(actions), work)


def test_unknown_kinds_and_what_cannot_be_interleaved() -> None:
    with pytest.raises(ScheduleError, match='unknown schedule "1b1f"\n  help: did you mean "1f1b"'):
        generate("1b1f", chain(2, 2, 2))
    with pytest.raises(ScheduleError, match=r"more stages than ranks: 4 on 4\n  help: cut the graph into 8 stages"):
        generate("interleaved", chain(4, 4, 2))


F0, F1, W0 = forward(0), forward(1), backward_weight(0)


@pytest.mark.parametrize(
    "changes, what",
    [
        ({"microbatches": 0}, "a pipeline of 0 microbatches\n  help: microbatches must be 1 or more"),
        ({"ranks": 0}, "a pipeline of 0 ranks"),
        (
            {"ranks": 3},
            "2 stages do not spread evenly over 3 ranks\n  help: cut the graph into 3 stages, or run the 2 on",
        ),
        ({"stages": 1, "ranks": 1}, "the forward of stage 1 is none of 1 stages"),
        (
            {"needs": {F0: frozenset({Task(0, "back")})}},
            "the forward of stage 0 needs the back of stage 0, which is no",
        ),
        ({"needs": {Task(0, "forwards"): frozenset()}}, 'unknown phase "forwards"\n  help: did you mean "forward"'),
        ({"needs": {F0: frozenset({F1}), F1: frozenset()}}, "a forward needs forwards of earlier stages alone"),
        ({"needs": {F0: frozenset({W0}), W0: frozenset()}}, "a forward needs forwards of earlier stages alone"),
        (
            {"needs": {W0: frozenset({backward_weight(1)}), backward_weight(1): frozenset({W0})}},
            "the backward_weight of stage . needs the backward_weight of stage . needs the backward_weight of stage .",
        ),
        ({"seconds": {F0: 1.0}}, "has no time"),
        ({"seconds": {F0: 1.0, F1: -1.0}}, "the forward of stage 1 takes -1.0 seconds"),
        (
            {"sends": {(F0, F1): float("nan")}},
            "the way from the forward of stage 0 to the forward of stage 1 takes nan",
        ),
    ],
)
def test_work_that_cannot_be(changes: dict[str, Any], what: str) -> None:
    work = Work(2, 2, 2, {F0: frozenset(), F1: frozenset({F0})}, {F0: 1.0, F1: 1.0})
    with pytest.raises(ScheduleError, match=what):
        replace(work, **changes)
