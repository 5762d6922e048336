"""Ops on a split dim as torch code with explicit collectives: what `expand` of a rule names."""
