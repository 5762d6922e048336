"""Ops that do what no op should. Workers import this module by `worker_imports`."""

from __future__ import annotations

import os
import time

import torch

from samite.runtime.board import Sequenced

_lib = torch.library.Library("misbehaving", "FRAGMENT")
_lib.define("slow(Tensor x, float seconds) -> Tensor")
_lib.define("raises(Tensor x, Tensor index, int rank) -> Tensor")
_lib.define("exits(Tensor x, Tensor index, int rank) -> Tensor")
_lib.define("exits_well(Tensor x, Tensor index, int rank, bool after_a_fork) -> Tensor")


def _slow(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.clone()


def _raises(x: torch.Tensor, index: torch.Tensor, rank: int) -> torch.Tensor:
    if index.item() == rank:
        raise ArithmeticError("a kernel that cannot")
    return x.clone()


def _exits(x: torch.Tensor, index: torch.Tensor, rank: int) -> torch.Tensor:
    if index.item() == rank:
        os._exit(3)
    return x.clone()


def _exits_well(x: torch.Tensor, index: torch.Tensor, rank: int, after_a_fork: bool) -> torch.Tensor:
    """The process that it forks holds every descriptor of the worker for some seconds more."""
    if index.item() == rank:
        if after_a_fork and os.fork() == 0:
            time.sleep(8)
        os._exit(0)
    return x.clone()


_KERNELS = {"slow": _slow, "raises": _raises, "exits": _exits, "exits_well": _exits_well}
for _name, _kernel in _KERNELS.items():
    _lib.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"misbehaving::{_name}")(lambda x, *rest: x.new_empty(x.shape))

# Collectives that rank 1 treats in its own way, by the size of what they are over: there is no other road to ranks that
# differ, because one program serves all of them.
SKIPPED, ALTERED, LAST = 101, 102, 103
_call = Sequenced._call


def _own_way(self: Sequenced, verb: str, x: torch.Tensor, axes: tuple[str, ...], *arguments: object) -> torch.Tensor:
    rank = getattr(self._inner, "_rank", 0)
    if rank == 1 and x.numel() in (SKIPPED, LAST):
        return x.clone()
    if rank == 1 and x.numel() == ALTERED:
        return _call(self, "all_reduce", x.clone(), axes, "max")
    return _call(self, verb, x, axes, *arguments)


Sequenced._call = _own_way  # type: ignore[method-assign]
