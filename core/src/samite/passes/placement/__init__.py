"""How `place` finds layouts: one walk assigns them, demands of users improve them; regions are placed on their own."""

from __future__ import annotations

from samite.passes.placement.regions import RegionPlan
from samite.passes.placement.search import best_placement
from samite.passes.placement.walk import Placement

__all__ = ["Placement", "RegionPlan", "best_placement"]
