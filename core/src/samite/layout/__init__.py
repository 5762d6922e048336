"""Layouts: how global tensors lie on a mesh. Frozen values; no torch, no I/O.

Every function takes any mapping from axis to size, in mesh order, as its mesh.
"""

from __future__ import annotations

from samite.layout.conversion import from_placements, to_placements
from samite.layout.factor import Dim, Factor, axes_of, merge, places, split, without
from samite.layout.identity import IDENTITY, identity
from samite.layout.layout import Layout, refuse_pinned
from samite.layout.normal_form import canonical
from samite.layout.resharding import bytes_moved, plan
from samite.layout.steps import Plan, Step, Verb
from samite.layout.views import regroup

__all__ = [
    "IDENTITY",
    "Dim",
    "Factor",
    "Layout",
    "Plan",
    "Step",
    "Verb",
    "axes_of",
    "bytes_moved",
    "canonical",
    "from_placements",
    "identity",
    "merge",
    "places",
    "plan",
    "refuse_pinned",
    "regroup",
    "split",
    "to_placements",
    "without",
]
