"""Schedules of pipelines: which rank runs which function of which microbatch, and when. Frozen values; no torch, no IR.

A schedule is one tuple of actions in a global order, and a rank runs those that are its own. `generate` makes one,
`check` proves that it is right and cannot deadlock, `simulate` predicts its time and memory, `choose` takes the best
kind, `timeline_of` draws it, and `programs` writes out what each rank runs, starts and waits for.
"""

from __future__ import annotations

from samite.schedules.actions import Action, Phase, Task, Work
from samite.schedules.check import check
from samite.schedules.choose import choose
from samite.schedules.generate import SCHEDULES, generate
from samite.schedules.picture import timeline_of
from samite.schedules.simulate import Simulated, Span, simulate
from samite.schedules.transfers import Event, Start, Transfer, Wait, check_transfers, programs

__all__ = [
    "SCHEDULES",
    "Action",
    "Event",
    "Phase",
    "Simulated",
    "Span",
    "Start",
    "Task",
    "Transfer",
    "Wait",
    "Work",
    "check",
    "check_transfers",
    "choose",
    "generate",
    "programs",
    "simulate",
    "timeline_of",
]
