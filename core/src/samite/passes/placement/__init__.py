"""How `place` finds layouts: one walk assigns them, demands of users improve them."""

from __future__ import annotations

from samite.passes.placement.demands import improved
from samite.passes.placement.walk import Placement

__all__ = ["Placement", "improved"]
