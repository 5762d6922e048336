"""Random ops outside of compiled functions: counter-based too, so that a value is the same on every mesh and layout.

The seed of each op is drawn from torch's default generator, which ranks seed alike: `torch.manual_seed` gives the same
numbers again.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from samite.eager.calls import Facts, facts

__all__ = ["Drawn", "draw_seed", "drawn", "draws_whole"]


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
        function: Any = getattr(torch.Tensor if name.endswith("_") else torch, name)
        return RandomOps(seed).handlers[function](function, args, kwargs)

    def __str__(self) -> str:
        return str(self.func)


_IGNORED = ("layout", "device", "pin_memory", "memory_format")


@cache
def drawn(func: Any) -> Drawn | None:
    """The form with a seed of an op that draws random numbers; None if it has none, or draws nothing."""
    if not is_random(func):
        return None
    from samite.frontend.random_arguments import refuse
    from samite.frontend.random_ops import RandomOps

    name: str = func._schema.name.removeprefix("aten::")
    function: Any = getattr(torch.Tensor if name.endswith("_") else torch, name, None)
    return Drawn(func) if RandomOps(torch.tensor(0)).handlers.get(function) not in (None, refuse) else None


@cache
def is_random(func: Any) -> bool:
    tags: Any = getattr(func, "tags", ())
    attends = "scaled_dot_product" in str(func)  # torch takes fused kernels only where no dropout is asked for
    return torch.Tag.nondeterministic_seeded in tags and not attends


def draws_whole(func: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an op draws by a generator of torch: one that the user gives, or the default one where the op has no
    counter-based form. Then the numbers are those of one device, and all ranks draw all of them."""
    return is_random(func) and (kwargs.get("generator") is not None or drawn(func) is None)
