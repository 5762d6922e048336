"""What a user calls: `samite.mesh` and `samite.compile`."""

from __future__ import annotations

from samite.api.compile import Compiled, compile
from samite.api.mesh import mesh

__all__ = ["Compiled", "compile", "mesh"]
