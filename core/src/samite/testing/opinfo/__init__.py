"""PyTorch's op database through Samite: every entry on simulated ranks at many placements, against plain PyTorch.

`database.py` draws samples, `calls.py` makes functions of them, `subject.py` takes one through Samite (`dtensor.py`
through DTensor), `sweep.py` tries an entry at its `placements.py`, `workers.py` all of them in processes of their own.
What comes of it are `Record`s; `python -m samite.testing.opinfo` keeps them as JSON and writes a page of them.
"""

from __future__ import annotations

from samite.testing.opinfo.record import Finding, Record, Tally
from samite.testing.opinfo.sweep import Effort, sweep
from samite.testing.opinfo.workers import sweep_all

__all__ = ["Effort", "Finding", "Record", "Tally", "sweep", "sweep_all"]
