"""What a call of a compiled training step costs its caller in Python, beyond waiting for the workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import samite
from benchmarks.workload import LEARNING_RATE, Workload, train_step
from samite.frontend import StateTree

__all__ = ["CALL", "KEY", "TREE", "caller_cpu"]

CALL, TREE, KEY = "the whole call", "of it: the state tree", "of it: the tree's key"
TINY = Workload(dim=16, vocab=32, block=16, batch=2)
"""As many tensors as the GPT of the figures has, and next to no work."""


def caller_cpu(steps: int) -> dict[str, list[float]]:
    """By part of a call, milliseconds of this thread's processor time in each of `steps` calls."""
    mesh = samite.mesh("cpu", engine="local", options={"threads_per_worker": 1}, dp=2)
    model, data = TINY.model(), TINY.data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    compiled = samite.compile(train_step, mesh=mesh)
    arguments = (model, optimizer, *data)
    for _ in range(3):  # the first call makes the optimizer's state, the second compiles for it
        compiled(*arguments).item()
    samples: dict[str, list[float]] = {part: [] for part in (CALL, TREE, KEY)}
    for _ in range(steps):
        loss = _cpu(samples[CALL], lambda: compiled(*arguments))
        tree = _cpu(samples[TREE], lambda: StateTree.from_call(train_step, arguments))
        _cpu(samples[KEY], tree.key)
        loss.item()
    return samples


def _cpu(samples: list[float], part: Callable[[], Any]) -> Any:
    started = time.thread_time()
    result = part()
    samples.append(1e3 * (time.thread_time() - started))
    return result
