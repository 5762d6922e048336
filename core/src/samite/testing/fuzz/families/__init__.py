"""The ops that programs are made of, by what they do to their operands. A file's families add themselves."""

from __future__ import annotations

from samite.testing.fuzz.families import indexing, pointwise, products, reductions, shapes
from samite.testing.fuzz.family import FAMILIES

__all__ = ["FAMILIES", "indexing", "pointwise", "products", "reductions", "shapes"]
