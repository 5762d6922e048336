"""Ops that change the shape of a tensor in place: `squeeze_`, `unsqueeze_`, `t_`, `transpose_`, `as_strided_`.

Such an op makes the tensor a view of what it was. torch calls some of them itself, on results that nobody has seen yet.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from samite.eager.value import enclosing

__all__ = ["change_shape", "changes_shape"]


_NAMES = ("as_strided", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze")


@cache
def _view_of(func: Any) -> Any:
    """The op that gives a view where `func` changes its operand, None if there is none."""
    if torch.Tag.inplace_view not in getattr(func, "tags", ()):
        return None
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    if name not in _NAMES:
        return None
    packet = getattr(torch.ops.aten, name, None)
    for overload in (func._overloadname, "int"):
        if overload in ("default", "int", "dim", "dims") and hasattr(packet, overload):
            return getattr(packet, overload)
    return None


def changes_shape(func: Any) -> bool:
    return _view_of(func) is not None


def change_shape(kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The first argument as it is afterwards. Those who looked at its memory still do."""
    from torch.utils._mode_utils import no_dispatch

    x, *literals = args
    before = enclosing(x._local, x._spec, kind)
    before._remote, before._view = x._remote, x._view
    view: Any = kind.__torch_dispatch__(_view_of(func), (), (before, *literals), kwargs)
    with no_dispatch():  # what torch itself knows of the tensor
        func(x, *literals, **kwargs)
    if x._view is None and view._view is not None:
        view._view.trusted = False  # of writes by those who look at the old memory nobody is told
    x._local, x._spec, x._remote, x._view = view._local, view._spec, view._remote, view._view
    return x
