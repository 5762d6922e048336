"""Plain PyTorch with a captured program's random numbers: the oracle for programs with random ops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from samite.frontend import attention
from samite.frontend.intercepts import FunctionMode, leaf_functions
from samite.frontend.random_ops import RandomOps
from samite.frontend.seeds import seed_tensor

__all__ = ["counter_rng"]


@contextmanager
def counter_rng(seed: int | None = None) -> Iterator[None]:
    """One step of eager PyTorch whose dropout, rand, randn, bernoulli, ... draw what a compiled step draws for `seed`.

    By default that of a function's first call; call n (from 0) draws for `torch.initial_seed() + n`. Random ops are
    numbered from 0 within the block, so a block holds exactly one step. Those that have no counter-based form raise
    CaptureError, as they do in a capture.
    """
    seed = torch.initial_seed() if seed is None else seed
    random = RandomOps(seed_tensor(seed))
    handlers = random.handlers | attention.handlers(random)
    with leaf_functions(), random.rng_state(), FunctionMode(handlers, _accept):
        yield


def _accept(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Eager code may use any tensor, on any device."""
    return kwargs
