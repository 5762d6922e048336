"""Random ops outside of compiled functions: counter-based too, so that a value is the same on every mesh and layout.

The seed of each op is drawn from torch's default generator, which ranks seed alike: `torch.manual_seed` gives the same
numbers again.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from samite.eager.calls import Facts, facts
from samite.errors import CaptureError

__all__ = ["Drawn", "draw_seed", "drawn"]


def draw_seed() -> torch.Tensor:
    """0-d int64, new at every call."""
    return torch.empty((), dtype=torch.int64).random_()


class Drawn:
    """A random op with its seed as first argument."""

    def __init__(self, func: Any) -> None:
        self.func = func
        known = facts(func)
        self.facts = Facts(("seed", *known.names), known.written, False)

    def __call__(self, seed: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        from samite.frontend.random_ops import RandomOps

        kwargs = {k: v for k, v in kwargs.items() if v is not None and k not in _IGNORED}
        name: str = self.func._schema.name.removeprefix("aten::")
        function: Any = getattr(torch.Tensor if name.endswith("_") else torch, name, None)
        handler = RandomOps(seed).handlers.get(function)
        if handler is None:
            raise CaptureError(
                f"random op {name} has no counter-based form",
                help="draw with torch.rand, randn, bernoulli or dropout, or take plain numbers in",
            )
        return handler(function, args, kwargs)

    def __str__(self) -> str:
        return str(self.func)


_IGNORED = ("layout", "device", "pin_memory", "memory_format")


@cache
def drawn(func: Any) -> Drawn | None:
    """The form with a seed of an op that draws random numbers, None of any other op."""
    tags: Any = getattr(func, "tags", ())
    attends = "scaled_dot_product" in str(func)  # torch takes fused kernels only where no dropout is asked for
    return Drawn(func) if torch.Tag.nondeterministic_seeded in tags and not attends else None
