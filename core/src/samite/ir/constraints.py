"""A wish for the layout of a value inside of a function, `samite::constrain`, until the importer makes it
`dist.constrain`.

    constrain(x, placements) -> x

`placements` is `spell`ed text: the op does not know the mesh yet. The gradient of `x` takes the same wish.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from samite.errors import PlacementError
from samite.placement import Partial, Placement, Replicate, Shard, as_placements

__all__ = ["constrain", "read", "spell"]

_lib = torch.library.Library("samite", "FRAGMENT")
_lib.define("constrain(Tensor x, str placements) -> Tensor")


def spell(placements: Mapping[str, object]) -> str:
    """Axis -> placement as text. Raises PlacementError for what is no placement, and for a partial value: a wish cannot
    make one."""
    words = as_placements(placements)
    for axis, word in words.items():
        if isinstance(word, Partial):
            raise PlacementError(f'a value cannot be asked to be {word} over "{axis}"', help="use Shard or Replicate")
    return json.dumps({axis: word.dim if isinstance(word, Shard) else None for axis, word in words.items()})


def read(text: str) -> dict[str, Placement]:
    """What `spell` wrote."""
    return {axis: Replicate() if dim is None else Shard(dim) for axis, dim in json.loads(text).items()}


def _copy(x: torch.Tensor, placements: str) -> torch.Tensor:
    return x.clone()  # an op may not return its operand


_lib.impl("constrain", _copy, "CompositeExplicitAutograd")
constrain = torch.ops.samite.constrain.default


def _keep_placements(ctx: Any, inputs: tuple[torch.Tensor, str], output: torch.Tensor) -> None:
    ctx.placements = inputs[1]


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
    return constrain(gradient, ctx.placements), None


torch.library.register_autograd("samite::constrain", _backward, setup_context=_keep_placements)
