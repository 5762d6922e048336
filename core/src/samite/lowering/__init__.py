"""From a module to what backends compile, once for all of them."""

from __future__ import annotations

from samite.lowering.fx import graph_to_fx, to_fx

__all__ = ["graph_to_fx", "to_fx"]
