"""Capture of Python functions as graphs, and the state that a call reaches."""

from __future__ import annotations

from samite.frontend.capture import ArgumentSpec, Capture, ResultSpec, capture
from samite.frontend.constraining import constrain
from samite.frontend.repeats import Trees
from samite.frontend.slots import Leaf
from samite.frontend.stages import stage
from samite.frontend.state import StateTree

__all__ = ["ArgumentSpec", "Capture", "Leaf", "ResultSpec", "StateTree", "Trees", "capture", "constrain", "stage"]
