"""`samite.Tensor`: a global tensor whose value lies on a mesh, with torch.Tensor's API, and the ways to make one."""

from __future__ import annotations

from samite.eager.remote import Remote
from samite.tensor.linear import Linear
from samite.tensor.making import empty, from_local, full, ones, rand, randn, tensor, zeros
from samite.tensor.modules import distribute_module
from samite.tensor.tensor import Tensor

__all__ = [
    "Linear",
    "Remote",
    "Tensor",
    "distribute_module",
    "empty",
    "from_local",
    "full",
    "ones",
    "rand",
    "randn",
    "tensor",
    "zeros",
]
