"""From a module to what backends compile, once for all of them."""

from __future__ import annotations

from samite.lowering.fx import graph_to_fx, to_fx
from samite.lowering.sizes import Sizes

__all__ = ["Sizes", "graph_to_fx", "to_fx"]
