"""One greedy list scheduler that makes every kind of schedule.

Whatever rank can start something first does; of what it could start at that moment it takes the most urgent. The kinds
differ in what is urgent, in what is held back, and so in how many microbatches are in flight (begun and not finished,
their activations held). With R ranks, V stages a rank, M microbatches, and every function of a rank taking one unit,
forward, backward_input and backward_weight:

    ============  ============================  ======================================================
    kind          bubble                        in flight, at most
    ============  ============================  ======================================================
    gpipe         2(R-1) / (3M + 2(R-1))        M of each stage
    1f1b          2(R-1) / (3M + 2(R-1))        min(M, S-s) of stage s of S
    interleaved   2(R-1) / (3VM + 2(R-1))       2(R-r-1) + (V-1)R + 1 of all stages of rank r together
    zero_bubble   (R-1) / (3M + R-1)            min(M, S - R*floor(s/R)) of stage s: what 1f1b's rank 0 holds
    ============  ============================  ======================================================

(interleaved if R divides M, zero_bubble from M = R on; a first stage without backward_input has a backward_weight of
two units). Sources: GPipe, Huang et al. 2019 (arXiv 1811.06965); 1F1B,
PipeDream-Flush of Narayanan et al. 2021 (2006.09503) after PipeDream, 2019 (1806.03377); interleaved, Megatron-LM of
Narayanan et al. 2021 (2104.04473); zero bubble, ZB-H1 of Qi et al. 2023 (2401.10241).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from samite.errors import ScheduleError, nearest
from samite.schedules.actions import Action, Phase, Task, Work

__all__ = ["SCHEDULES", "generate"]

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")


def generate(kind: str, work: Work) -> tuple[Action, ...]:
    """The schedule of a kind, in order of start; the same in every process.

    Microbatches ascend within each task, so that sums over them are bit-equal whatever the schedule. A program without
    backward has the same schedule in all kinds but interleaved. Raises ScheduleError for an unknown kind, and for
    interleaved with one stage a rank.
    """
    if kind not in SCHEDULES:
        raise ScheduleError(f'unknown schedule "{kind}"', help=nearest(kind, SCHEDULES))
    if kind == "interleaved" and work.stages == work.ranks:
        raise ScheduleError(
            f"interleaved needs more stages than ranks: {work.stages} on {work.ranks}",
            help=f'cut the graph into {2 * work.ranks} stages, two a rank, or take "1f1b" or "zero_bubble"',
        )
    progress = _Progress(work)
    policy = _Policy(kind, progress)
    best = [_earliest(rank, policy, progress) for rank in range(work.ranks)]
    actions: list[Action] = []
    while runnable := [candidate for candidate in best if candidate]:
        start, _, action = min(runnable)
        progress.run(action.task, start)
        actions.append(action)
        for rank in {action.rank, *map(work.rank, progress.users[action.task])}:
            best[rank] = _earliest(rank, policy, progress)
    assert len(actions) == len(work.needs) * work.microbatches, f"{kind} is stuck after {len(actions)} actions"
    return tuple(actions)


class _Candidate(NamedTuple):
    start: float
    urgency: tuple[int, ...]  # smaller first
    action: Action


class _Progress:
    """What has run, and until when. Of every task the microbatches run in order, so that a count says which."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.tasks = [work.tasks_of(rank) for rank in range(work.ranks)]
        self.of_stage: dict[int, list[Task]] = {}
        self.users: dict[Task, list[Task]] = {task: [] for task in work.needs}
        for task, needed in work.needs.items():
            self.of_stage.setdefault(task.stage, []).append(task)
            for need in needed:
                self.users[need].append(task)
        self.ends: dict[Task, list[float]] = {task: [] for task in work.needs}  # one a microbatch that ran
        self.free = [0.0] * work.ranks  # when each rank has finished what it began

    def next(self, task: Task) -> int:
        """The microbatch that a task runs next."""
        return len(self.ends[task])

    def finished(self, stage: int) -> int:
        """How many microbatches a stage is done with."""
        return min(map(self.next, self.of_stage[stage]))

    def in_flight(self, stages: Iterable[int]) -> int:
        """How many pairs of a stage and a microbatch are begun and not finished."""
        return sum(max(map(self.next, self.of_stage[s])) - self.finished(s) for s in stages)

    def start(self, task: Task) -> float | None:
        """When the task can run next, or None while something that it needs has not been scheduled."""
        microbatch, earliest = self.next(task), self.free[self.work.rank(task)]
        for need in self.work.needs[task]:
            if self.next(need) <= microbatch:
                return None
            earliest = max(earliest, self.ends[need][microbatch] + self.work.seconds_between(need, task))
        return earliest

    def run(self, task: Task, start: float) -> None:
        end = start + self.work.seconds[task]
        self.ends[task].append(end)
        self.free[self.work.rank(task)] = end


class _Policy:
    """What a kind lets run, and what it takes first.

    None can get stuck. In 1f1b and zero_bubble a stage admits microbatches in order and counts its own alone, so that
    the oldest unfinished one is never held back; in gpipe no forward is. Interleaved forwards run in one fixed order,
    which agrees on all ranks with what needs what, and the (V-1)R that come before the first of a rank's last stage are
    fewer than its limit.
    """

    # A forward that is admitted goes before a backward_input: its limit lets it in only after the last one's backward,
    # so that they alternate. A backward_weight follows its backward_input at once, or fills what would be a bubble.
    _FUSED: tuple[Phase, ...] = ("backward_weight", "forward", "backward_input")
    _SPLIT: tuple[Phase, ...] = ("forward", "backward_input", "backward_weight")

    def __init__(self, kind: str, progress: _Progress) -> None:
        self._progress, self._work = progress, progress.work
        self._urgent = self._SPLIT if kind == "zero_bubble" else self._FUSED
        self._interleaved = kind == "interleaved"
        self.admits: Callable[[Task], bool] = {
            "gpipe": self._after_all_forwards,
            "1f1b": lambda task: self._within(task, self._work.stages - task.stage),
            "interleaved": self._in_turn,
            "zero_bubble": self._ahead,
        }[kind]

    def urgency(self, task: Task) -> tuple[int, ...]:
        """Of tasks that could start at the same time, the one with the smallest goes first."""
        return self._urgent.index(task.phase), *self._turn(task, self._progress.next(task))

    def _turn(self, task: Task, microbatch: int) -> tuple[int, ...]:
        """Oldest microbatch first; interleaved, R microbatches pass through a stage before the rank's next stage."""
        if not self._interleaved:
            return microbatch, task.stage
        group, place = divmod(microbatch, self._work.ranks)
        depth = task.stage // self._work.ranks
        return group, depth if task.phase == "forward" else -depth, place

    def _after_all_forwards(self, task: Task) -> bool:
        tasks = self._progress.tasks[self._work.rank(task)]
        forwards = (self._progress.next(one) for one in tasks if one.phase == "forward")
        return task.phase == "forward" or all(done == self._work.microbatches for done in forwards)

    def _within(self, task: Task, limit: int) -> bool:
        return self._progress.next(task) < self._progress.finished(task.stage) + limit

    def _ahead(self, task: Task) -> bool:
        """Ahead of the backward_inputs as in 1f1b, of the backward_weights as far as the first rank in 1f1b."""
        stages, progress = self._work.stages, self._progress
        backward = Task(task.stage, "backward_input")
        if task.phase == "forward" and backward in self._work.needs:
            if progress.next(task) >= progress.next(backward) + stages - task.stage:
                return False
        return self._within(task, stages - task.stage + self._work.rank(task))

    def _in_turn(self, task: Task) -> bool:
        if task.phase != "forward":
            return True
        rank, ranks, progress = self._work.rank(task), self._work.ranks, self._progress
        left = [t for t in progress.tasks[rank] if t.phase == "forward" and progress.next(t) < self._work.microbatches]
        first = min(left, key=lambda t: self._turn(t, progress.next(t)))
        limit = 2 * (ranks - rank - 1) + self._work.stages - ranks + 1
        return task == first and progress.in_flight({t.stage for t in progress.tasks[rank]}) < limit


def _earliest(rank: int, policy: _Policy, progress: _Progress) -> _Candidate | None:
    """What a rank does next: of the admitted tasks that could start first, the most urgent."""
    best: _Candidate | None = None
    for task in progress.tasks[rank]:
        microbatch = progress.next(task)
        if microbatch == progress.work.microbatches or not policy.admits(task):
            continue
        if (start := progress.start(task)) is not None:
            candidate = _Candidate(start, policy.urgency(task), Action(rank, *task, microbatch))
            best = min(best or candidate, candidate)
    return best
