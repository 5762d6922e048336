"""Samite lays one ordinary PyTorch program over a mesh of unlike devices.

mesh = samite.mesh("cpu", dp=2, tp=2)

@samite.compile(mesh=mesh, placements={"tokens": {"dp": Shard(0)}, "targets": {"dp": Shard(0)}})
def train_step(model, optimizer, tokens, targets): ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# `mesh` and `tensor`, the functions, hide the modules of these names, which `samite.api` has imported by then.
from samite.api import compile, mesh
from samite.errors import SamiteError
from samite.frontend import constrain, stage
from samite.placement import Partial, Placement, Replicate, Shard
from samite.runtime.departures import tell_at_exit
from samite.tensor import Tensor, distribute_module, empty, from_local, full, ones, rand, randn, tensor, zeros

if TYPE_CHECKING:
    from samite import plugins, testing, umem

__all__ = [
    "Partial",
    "Placement",
    "Replicate",
    "SamiteError",
    "Shard",
    "Tensor",
    "compile",
    "constrain",
    "distribute_module",
    "empty",
    "from_local",
    "full",
    "mesh",
    "ones",
    "plugins",
    "rand",
    "randn",
    "stage",
    "tensor",
    "testing",
    "umem",
    "zeros",
]

__version__ = "0.1.0"

tell_at_exit()

_LAZY = ("plugins", "testing", "umem")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"samite.{name}")
    raise AttributeError(f"module 'samite' has no attribute {name!r}")
