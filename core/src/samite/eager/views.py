"""Values that are out of date when something else is written: views with memory of their own, handles of buffers.

Most views share their base's shards. One that had to gather does not; it remembers its base, is made anew when the
base has changed, and what is written to it is written to the base as well. So it is a view to everyone.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from samite.eager.calls import Facts
from samite.eager.value import enclosing

__all__ = ["Source", "Through", "View", "through"]


class Source(Protocol):
    """Where the value of a loose tensor comes from."""

    def fresh(self, x: Any) -> Any:
        """A firm tensor with the current value, whose memory is that of `x`."""
        ...

    def written(self, x: Any, firm: Any) -> None:
        """`firm`, which `fresh` gave, has been written to in place."""
        ...


class View:
    """`func(*args, **kwargs)`, or its result number `index`; the first argument is the base."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> None:
        self.func, self.args, self.kwargs, self.index = func, args, kwargs, index
        self.stamp = _stamp(args[0])

    def fresh(self, x: Any) -> Any:
        stamp = _stamp(self.args[0])
        if stamp is None or stamp != self.stamp:
            made: Any = type(x).__torch_dispatch__(self.func, (), self.args, self.kwargs)
            x._local = (made if type(made) is type(x) else made[self.index])._local
            self.stamp = stamp
        return enclosing(x._local, x._spec.having(loose=False), type(x))

    def written(self, x: Any, firm: Any) -> None:
        base, *literals = self.args
        type(x).__torch_dispatch__(through(self.func, tuple(literals), self.kwargs, self.index), (), (base, firm), {})


def _stamp(base: Any) -> int | None:
    """Changes when the base does; None if that cannot be told."""
    return None if base.is_inference() else base._version


class Through:
    """An op: `value` is written to `func(base, ...)`, and so to the base."""

    facts = Facts(("base", "value"), frozenset(("base",)), False)

    def __init__(self, func: Any, literals: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> None:
        self.func, self.literals, self.kwargs, self.index = func, literals, kwargs, index

    def __call__(self, base: torch.Tensor, value: torch.Tensor) -> None:
        made = self.func(base, *self.literals, **self.kwargs)
        (made if isinstance(made, torch.Tensor) else made[self.index]).copy_(value)

    def __str__(self) -> str:
        return f"a write through {self.func}"


_throughs: dict[str, Through] = {}


def through(func: Any, literals: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> Through:
    """The one `Through` of a view: plans find ops by identity."""
    key = repr((str(func), literals, sorted(kwargs.items()), index))
    return _throughs.setdefault(key, Through(func, literals, kwargs, index))
