"""How ops carry layouts. `tables/` has one line an op; `language.py` says what a line means."""

from __future__ import annotations

from samite.rules.language import Rule, find_rule, rule, rules
from samite.rules.shards import Shards

__all__ = ["Rule", "Shards", "find_rule", "rule", "rules"]
