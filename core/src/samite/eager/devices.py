"""Calls that name a device: a mesh has its own, and on `meta` there are shapes alone."""

from __future__ import annotations

from typing import Any

import torch

from samite.eager.calls import leaves_of, replaced
from samite.errors import InputError

__all__ = ["names_another", "on_meta"]


def names_another(kind: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call asks for a result on `meta`. Raises InputError if it asks for one on any other device that the
    mesh is not of: nothing is moved there silently, and nothing silently stays."""
    if kwargs.get("device") is None:
        return False
    wanted = torch.device(kwargs["device"]).type
    have = next(x.device.type for _, x in leaves_of(args, kwargs) if type(x) is kind)
    if wanted not in (have, "meta"):
        raise InputError(
            f'a distributed tensor on "{have}" is asked for on "{wanted}"',
            help=f'take the whole value: x.full_tensor().to("{wanted}"); or make a mesh of that backend',
        )
    return wanted == "meta" != have


def on_meta(kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """The call on plain meta tensors of the same geometry."""

    def meta(x: Any) -> torch.Tensor:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if type(x) is kind else x

    args, kwargs = replaced(args, kwargs, [(place, meta(x)) for place, x in leaves_of(args, kwargs)])
    return func(*args, **kwargs)
