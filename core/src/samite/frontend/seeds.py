"""The seed of a step as the argument of its program."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["seed_tensor"]


def seed_tensor(seed: int) -> Tensor:
    """The 64 bits of `seed` as an int64: torch's own seeds fill all of them, where nobody has set one."""
    return torch.tensor((seed + 2**63) % 2**64 - 2**63, dtype=torch.int64)
