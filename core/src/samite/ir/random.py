"""Counter-based random numbers: `samite::philox_uniform`, the only source of randomness in a captured program.

    philox_uniform(Tensor seed, int op, int[] size) -> float32
    philox_uniform_at(Tensor seed, int op, Tensor index) -> float32, of the shape of `index` (int64)

`seed` is a 0-d int64 tensor, new at every step. `op` numbers the random ops of a step. Element i, i being the row-major
index in the *global* tensor, depends on (seed, op, i) alone, so that every layout and every backend gives the same
bits:

    counter = (b & 0xffffffff, b >> 32, op, 0)          where b = i // 4
    key     = (seed & 0xffffffff, (seed >> 32) & 0xffffffff)
    bits    = Philox4x32-10(counter, key)[i % 4]
    value   = (bits >> 8) * 2**-24                      in [0, 1)

Philox4x32-10 is that of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["philox", "philox_uniform", "philox_uniform_at"]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_CHUNK = 1 << 14
"""Blocks computed at a time: the dozen int64 temporaries of a round then stay in the cache."""

_lib = torch.library.Library("samite", "FRAGMENT")
_lib.define("philox_uniform(Tensor seed, int op, SymInt[] size) -> Tensor")
_lib.define("philox_uniform_at(Tensor seed, int op, Tensor index) -> Tensor")


def philox(counter: Sequence[Tensor | int], key: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rounds of Philox4x32. All words are int64 holding 32 bits; at least counter[0] is a tensor."""
    c0, c1, c2, c3 = (torch.as_tensor(c) for c in counter)
    k0, k1 = key
    for _ in range(10):
        # The product of two 32-bit words wraps around in int64, yet all of its 64 bits are right: shift, then mask.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _blocks(seed: int, op: int, block: Tensor) -> Tensor:
    """The four values of each block number (int64, 1-d): float32 of shape (len(block), 4)."""
    if block.numel() > _CHUNK:
        return torch.cat([_blocks(seed, op, part) for part in block.split(_CHUNK)])
    words = philox((block & _MASK, block >> 32, op, 0), (seed & _MASK, (seed >> 32) & _MASK))
    return torch.stack(words, dim=-1).bitwise_right_shift_(8).to(torch.float32).mul_(2.0**-24)


def _philox_uniform(seed: Tensor, op: int, size: Sequence[int]) -> Tensor:
    count = math.prod(size)
    block = torch.arange((count + 3) // 4, dtype=torch.int64, device=seed.device)
    return _blocks(int(seed.item()), op, block).view(-1)[:count].reshape(tuple(size))


def _philox_uniform_at(seed: Tensor, op: int, index: Tensor) -> Tensor:
    number, flat = int(seed.item()), index.reshape(-1)
    quads = flat.view(-1, 4) if flat.numel() % 4 == 0 else None
    if quads is not None and bool((quads == (quads[:, :1] & ~3) + torch.arange(4, device=index.device)).all()):
        # A shard usually holds whole blocks; then each is computed once instead of four times.
        return _blocks(number, op, quads[:, 0] >> 2).reshape(index.shape)
    values = _blocks(number, op, flat >> 2)
    return values.gather(1, (flat & 3).unsqueeze(1)).reshape(index.shape)


_lib.impl("philox_uniform", _philox_uniform, "CompositeExplicitAutograd")
_lib.impl("philox_uniform_at", _philox_uniform_at, "CompositeExplicitAutograd")

philox_uniform = torch.ops.samite.philox_uniform.default
philox_uniform_at = torch.ops.samite.philox_uniform_at.default


@torch.library.register_fake("samite::philox_uniform")
def _(seed: Tensor, op: int, size: Sequence[int]) -> Tensor:
    return seed.new_empty(tuple(size), dtype=torch.float32)


@torch.library.register_fake("samite::philox_uniform_at")
def _(seed: Tensor, op: int, index: Tensor) -> Tensor:
    return index.new_empty(index.shape, dtype=torch.float32)
