"""The checker of sharding rules: `check_rules`, and what samples are made of."""

from __future__ import annotations

from samite.testing.rulecheck.checker import check_rules
from samite.testing.rulecheck.report import Finding, Report
from samite.testing.rulecheck.sample import Fill, Sample, bools, distinct, floats, ints

__all__ = ["Fill", "Finding", "Report", "Sample", "bools", "check_rules", "distinct", "floats", "ints"]
