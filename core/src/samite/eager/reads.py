"""Calls that need whole values: ops that give numbers, writes into plain tensors, draws by torch's generators."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Protocol, cast

import torch

from samite.eager.calls import facts, leaves_of

__all__ = ["Reader", "carry_out", "is_read", "writes_plain"]

log = logging.getLogger("samite")


class Reader(Protocol):
    def whole(self, x: Any) -> torch.Tensor:
        """The value of a distributed tensor as a plain one, not to be written to."""
        ...


@cache
def is_read(func: Any) -> bool:
    """Whether an op gives what is no tensor: `item()`, `equal`."""
    schema = getattr(func, "_schema", None)
    return schema is not None and bool(schema.returns) and not any("Tensor" in str(r.type) for r in schema.returns)


def writes_plain(kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call writes into a plain tensor."""
    known = facts(func)
    return bool(known.written) and any(
        type(x) is not kind and known.writes(place) for place, x in leaves_of(args, kwargs)
    )


def carry_out(home: Reader, kind: type[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call on whole values. It is said in the log, since it may communicate and takes the memory of the whole."""
    if (without := _WITHOUT_DATA.get(str(func))) is not None:
        return without(*args)

    def plain(value: Any) -> Any:
        if type(value) is kind:
            if not value._spec.layout.is_replicated:
                log.debug("%s takes the whole of a value laid out as %s", func, value._spec.layout)
            return home.whole(value)
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value

    known, first = facts(func), cast(Any, args[0] if args else None)
    if known.written and type(first) is kind:
        made = plain(first).clone()
        func(made, *map(plain, args[1:]), **{k: plain(v) for k, v in kwargs.items()})
        return first.copy_(made)
    result = func(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
    return next(x for _, x in leaves_of(args, kwargs)) if known.written and isinstance(result, torch.Tensor) else result


_MATH = 0  # at::SDPBackend: attention as products and a softmax, each of which has a rule

_WITHOUT_DATA: dict[str, Any] = {
    "aten.is_same_size.default": lambda x, y: x.shape == y.shape,
    "aten._fused_sdp_choice.default": lambda *_: _MATH,
}
