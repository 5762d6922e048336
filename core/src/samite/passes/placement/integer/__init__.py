"""The search for a placement by an integer program, one mesh axis at a time."""

from __future__ import annotations

from samite.passes.placement.integer.descent import Search, search

__all__ = ["Search", "search"]
