"""A sample or more for each built-in rule, by family as the tables are.

Sizes are chosen to be uneven (7), empty on some rank (1) and composite (4, 6) over meshes of 2 and 3.
"""

from __future__ import annotations

from functools import cache

from samite.testing.rulecheck.sample import Sample

__all__ = ["all_samples"]


@cache
def all_samples() -> dict[str, list[Sample]]:
    """By op."""
    from samite.testing.rulecheck.samples import (
        creation,
        elementwise,
        indexing,
        linalg,
        matmul,
        networks,
        optimizers,
        ordering,
        reductions,
        special,
        views,
    )

    found: dict[str, list[Sample]] = {}
    families = (
        elementwise,
        special,
        matmul,
        linalg,
        reductions,
        ordering,
        views,
        indexing,
        networks,
        creation,
        optimizers,
    )
    for family in families:
        for sample in family.samples():
            found.setdefault(sample.op, []).append(sample)
    return found
