"""The best schedule for a pipeline."""

from __future__ import annotations

from samite.errors import ScheduleError
from samite.schedules.actions import Action, Work
from samite.schedules.generate import SCHEDULES, generate
from samite.schedules.simulate import Simulated, simulate

__all__ = ["choose"]

# Of two times closer than this share, neither is the shorter one: sums of floats differ by order.
_SAME = 1e-9


def choose(work: Work, memory_per_rank: int = 0) -> tuple[str, tuple[Action, ...], Simulated]:
    """The kind, the schedule and the simulation of what is fastest among the kinds whose saved bytes fit every rank.

    `memory_per_rank` is in bytes; 0 sets no limit. Of equally fast ones it is the one whose fullest rank holds least,
    and then the first in `SCHEDULES`. Raises ScheduleError if none fits.
    """
    kinds = [kind for kind in SCHEDULES if kind != "interleaved" or work.stages > work.ranks]
    tried = {kind: (actions := generate(kind, work), simulate(actions, work)) for kind in kinds}
    full = {kind: max(simulated.peak_bytes) for kind, (_, simulated) in tried.items()}
    fitting = [kind for kind in kinds if not memory_per_rank or full[kind] <= memory_per_rank]
    if not fitting:
        least = min(kinds, key=lambda kind: full[kind])
        raise ScheduleError(
            f"no schedule fits: {least} holds least, and saves {full[least]:,} bytes on one rank "
            f"({full[least] - memory_per_rank:,} more than the {memory_per_rank:,} that it may)",
            help="more microbatches make each smaller; checkpointing saves less of each",
        )
    fastest = min(tried[kind][1].seconds for kind in fitting)
    best = min(
        (kind for kind in fitting if tried[kind][1].seconds <= fastest * (1 + _SAME)), key=lambda kind: full[kind]
    )
    return best, *tried[best]
