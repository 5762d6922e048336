"""How `place` finds layouts.

From given ones: one walk assigns the others, demands of users improve them; regions are placed on their own. By cost:
plain ways to split a step, and what an integer program finds, are priced.
"""

from __future__ import annotations

from samite.passes.placement.assignment import Assignment
from samite.passes.placement.automatic import Automatic, Candidate, Decision, decide
from samite.passes.placement.regions import RegionPlan
from samite.passes.placement.search import best_placement
from samite.passes.placement.walk import Placement

__all__ = ["Assignment", "Automatic", "Candidate", "Decision", "Placement", "RegionPlan", "best_placement", "decide"]
