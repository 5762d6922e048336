"""State that a program found on the workers, to be seen at the next call without asking each tensor again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from samite.layout import Layout
from samite.tensor import Remote, Tensor

__all__ = ["Held"]


@dataclass(frozen=True)
class Held:
    """The state arguments of a program, in order: each is the whole of a buffer, laid out as the program takes it.

    `generation` is the session's.
    """

    tensors: Sequence[torch.Tensor]
    remotes: Sequence[Remote]
    layouts: Sequence[Layout]
    generation: int

    @staticmethod
    def of(tensors: Sequence[torch.Tensor], remotes: Sequence[Remote], generation: int) -> Held:
        return Held(tensors, remotes, [remote.layout for remote in remotes], generation)

    def still(self, tensors: Sequence[torch.Tensor], generation: int) -> bool:
        """Whether so are these: nobody has put other tensors there, given one another value, or moved it."""
        if generation != self.generation:
            return False
        for now, tensor, remote, layout in zip(tensors, self.tensors, self.remotes, self.layouts, strict=True):
            if now is not tensor or type(now) is not Tensor or not now.is_all_of(remote):
                return False
            if remote.layout is not layout or not remote.on_workers:
                return False
        return True
