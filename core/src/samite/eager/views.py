"""Values that are out of date when something else is written: views with memory of their own, handles of buffers.

Most views share their base's shards. One that had to gather does not; it remembers its base, is made anew when the
base has changed, and what is written to it is written to the base as well. So it is a view to everyone.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from samite.eager.calls import Facts

__all__ = ["Seen", "Source", "Through", "View", "seen", "stamp_of", "through", "unseen"]


class Source(Protocol):
    """Where the value of a loose tensor comes from."""

    def fresh(self, x: Any) -> Any:
        """A firm tensor with the current value of `x`; what is written to it is for `written` to take up."""
        ...

    def written(self, x: Any, firm: Any) -> None:
        """`firm`, which `fresh` gave, has been written to in place."""
        ...

    def stamp(self, x: Any) -> object:
        """Another one once the value has changed; None if that cannot be told."""
        ...


class View:
    """`func(*args, **kwargs)`, or its result number `index`; the first argument is the base.

    Unless it is `trusted`, the base is taken to have changed whenever somebody asks.
    """

    trusted = True

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> None:
        self.func, self.base, self.literals, self.kwargs, self.index = func, args[0], args[1:], kwargs, index
        self._stamp: object = None

    def fresh(self, x: Any) -> Any:
        stamp = self.stamp(x)
        if stamp is None or stamp != self._stamp:
            x._spec.home.renew(x, self)
            self._stamp = stamp
        return x._spec.home.firm(x)

    def written(self, x: Any, firm: Any) -> None:
        back = through(self.func, self.literals, self.kwargs, self.index)
        type(x).__torch_dispatch__(back, (), (self.base, firm), {})

    def stamp(self, x: Any) -> object:
        return stamp_of(self.base) if self.trusted else None


def stamp_of(x: Any) -> object:
    """As `Source.stamp`, of any distributed tensor. Writes of ops count in the tensor's version, those of who holds
    this rank's part as a plain tensor in that of the part."""
    if x._spec.loose:
        return x._view.stamp(x)
    if x.is_inference() or x._local.is_inference() or x._local.untyped_storage()._cdata in _unseen:
        return None
    return x._version, x._local._version


def unseen(local: torch.Tensor) -> None:
    """From now on memory is written to by a tensor whose version is its own, as that of `x.data` is."""
    from torch.multiprocessing.reductions import StorageWeakRef

    for key in [key for key, storage in _unseen.items() if storage.expired()]:
        del _unseen[key]
    storage = StorageWeakRef(local.untyped_storage())
    _unseen.setdefault(storage.cdata, storage)


_unseen: dict[int, Any] = {}
"""Address of a storage -> a weak reference to it, which keeps the address in use."""


class Seen:
    """An op: what a view shows, as a value of its own."""

    facts = Facts(("base",), frozenset(), False)

    def __init__(self, func: Any, literals: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> None:
        self.func, self.literals, self.kwargs, self.index = func, literals, kwargs, index

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        made = self.func(base, *self.literals, **self.kwargs)
        return made if isinstance(made, torch.Tensor) else made[self.index]

    def __str__(self) -> str:
        return str(self.func)


class Through(Seen):
    """An op: a value is written to a view, and so to the base."""

    facts = Facts(("base", "value"), frozenset(("base",)), False)

    def __call__(self, base: torch.Tensor, value: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().__call__(base).copy_(value)

    def __str__(self) -> str:
        return f"a write through {self.func}"


_ops: dict[tuple[type[Any], str], Any] = {}
"""Plans find ops by identity."""


def seen(func: Any, literals: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> Seen:
    """The one `Seen` of a view."""
    return _known(Seen, func, literals, kwargs, index)


def through(func: Any, literals: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> Through:
    """The one `Through` of a view."""
    return _known(Through, func, literals, kwargs, index)


def _known(kind: type[Any], func: Any, literals: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> Any:
    key = kind, repr((str(func), literals, sorted(kwargs.items()), index))
    if key not in _ops:
        _ops[key] = kind(func, literals, kwargs, index)
    return _ops[key]
