"""The base of `samite.Tensor`: how a call on one finds its plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samite.eager.keys import note, specs_of
from samite.eager.remote import Remote
from samite.eager.spec import Home, Spec
from samite.eager.views import Source
from samite.errors import MeshError

__all__ = ["NOTHING", "PLANS", "Value", "enclosing"]

PLANS: dict[tuple[Any, ...], Callable[[tuple[Any, ...], dict[str, Any]], Any]] = {}
"""Key of a call -> what carries it out."""


NOTHING = torch.empty(0)
"""This rank's part of what is elsewhere, or not asked for yet."""


class Value(torch.Tensor):
    """A global tensor: what torch sees has its shape, dtype and strides, and no memory.

    `_local` is this rank's buffer, where this process is a rank. In-place ops write into it and never replace it, so
    that views of it see them. `_remote` is the buffer on workers, if there is one, and `_view` the source of a loose
    tensor.
    """

    _local: torch.Tensor
    _spec: Spec
    _remote: Remote | None = None
    _view: Source | None = None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        parts: list[Any] = [id(func)]  # an overload lives as long as the process
        for value in args:
            if type(value) is cls:
                parts.append(value._spec)
            elif type(value) is int:
                parts.append(value)
            else:
                note(parts, cls, value)
        if kwargs:
            for name, value in kwargs.items():
                parts.append(name)
                note(parts, cls, value)
        plan = PLANS.get(tuple(parts))
        if plan is None:
            return _home(cls, func, args, kwargs or {}).call(cls, func, args, kwargs or {})
        return plan(args, kwargs)


def enclosing(local: torch.Tensor, spec: Spec, kind: type[Any]) -> Any:
    """The tensor of class `kind` of which this rank holds `local`. Autograd knows nothing of it."""
    make: Any = torch.Tensor._make_wrapper_subclass
    geometry = () if spec.contiguous else (spec.stride, spec.offset)
    made = make(kind, spec.shape, *geometry, dtype=spec.dtype, device=local.device)
    made._local, made._spec = local, spec
    return made


def _home(kind: type[Value], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Home:
    """Where a call takes place. Raises MeshError if its tensors lie on several meshes."""
    homes = {spec.home for spec in specs_of(kind, args, kwargs)}
    if len(homes) > 1:
        one, other = sorted(str(home.mesh) for home in homes)[:2]
        raise MeshError(
            f"{func}: its tensors lie on two meshes: {one} and {other}",
            help="bring one of them over: samite.tensor(x.full_tensor(), mesh, placements)",
        )
    return homes.pop()
