"""What tests of backends, of sharding rules and of programs use; shipped with the core."""

from __future__ import annotations

from samite.testing.counter_rng import counter_rng
from samite.testing.rulecheck import check_rules

__all__ = ["check_rules", "counter_rng"]
