"""How ops carry layouts. `tables/` has one line an op; `language.py` says what it means, `notation.py` reads it.

`binding.py` fits a rule to a call, `planning.py` (with `choices.py`) decides layouts, `shards.py` is what the functions
of rules may ask about the shards they run on, `expansions/` are the ops that communicate themselves.
"""

from __future__ import annotations

from samite.rules.language import Rule, find_rule, rule, rules
from samite.rules.shards import Shards

__all__ = ["Rule", "Shards", "find_rule", "rule", "rules"]
