"""What all tests share: one thread a process, deterministic numbers, and marks that follow the hardware."""

from __future__ import annotations

import os

# Before torch is imported, which reads it once. `make pytest` sets it too, for the tests of the plugins.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What a test compiles is compiled: what an earlier run kept is of other code.
os.environ.setdefault("SAMITE_CACHE_DIR", "off")

import hypothesis
import pytest
import torch

# A shared machine makes any single example slow at times: total time is held by pytest-timeout, not by a deadline an
# example. CI draws the same examples every time, so that a red run is the change's own.
hypothesis.settings.register_profile("samite", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("samite")


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test draws the same random tensors, whichever tests ran before it in its process."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
