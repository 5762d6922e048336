"""A call of an op as data: which of its arguments are tensors, what it writes, and whether it gives views."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from samite.ir.context import TensorType
from samite.layout import Layout

__all__ = ["Call", "Facts", "Leaf", "Place", "at", "facts", "leaves_of", "replaced"]


Place = tuple["int | str", ...]
"""Where a tensor stands among the arguments: (1,) or (0, 2) or ("out",)."""


class Facts(NamedTuple):
    """What the schema of an op says. `written` names arguments that it changes; `views` that its results are views of
    its first argument."""

    names: tuple[str, ...]
    written: frozenset[str]
    views: bool

    def writes(self, place: Place) -> bool:
        """Whether the op writes to what stands there."""
        return (self.names[place[0]] if isinstance(place[0], int) else place[0]) in self.written


@cache
def facts(func: Any) -> Facts:
    """Of an overload, or of any function that has `facts` of its own."""
    known: Facts | None = getattr(func, "facts", None)
    if known is not None:
        return known
    schema = func._schema
    written = frozenset(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return Facts(tuple(a.name for a in schema.arguments), written, views)


@dataclass(frozen=True)
class Leaf:
    """One tensor argument. `layout` is None for a plain tensor, of which every rank has all."""

    place: Place
    type: TensorType
    stride: tuple[int, ...]
    layout: Layout | None
    written: bool = False


def leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Place, Any]]:
    """The tensors of a call, positional arguments first."""
    for key, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, torch.Tensor):
            yield (key,), value
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    yield (key, index), item


def at(place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The argument at a place."""
    value = args[place[0]] if isinstance(place[0], int) else kwargs[place[0]]
    return value if len(place) == 1 else value[place[1]]


def replaced(
    args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[tuple[Place, Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with other tensors at some places."""
    found, named = list(args), dict(kwargs)
    for place, value in values:
        holder: Any = found if isinstance(place[0], int) else named
        if len(place) == 1:
            holder[place[0]] = value
        else:
            items: Any = list(holder[place[0]])
            items[place[1]] = value
            holder[place[0]] = items
    return tuple(found), named


@dataclass(frozen=True)
class Call:
    """`func(*args, **kwargs)` with leaves in place of tensors."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(
        cls,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        describe: Callable[[Any], tuple[TensorType, tuple[int, ...], Layout | None]],
    ) -> Call:
        known = facts(func)
        leaves: list[Leaf] = []
        for place, tensor in leaves_of(args, kwargs):
            leaves.append(Leaf(place, *describe(tensor), known.writes(place)))
        found = iter(leaves)
        return cls(func, _map(args, found), {k: _replace(v, found) for k, v in kwargs.items()}, tuple(leaves))

    def run(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """The call on other tensors, one for each leaf."""
        given = iter(tensors)
        args = [_fill(value, given) for value in self.args]
        return self.func(*args, **{k: _fill(v, given) for k, v in self.kwargs.items()})


def _map(values: tuple[Any, ...], found: Iterator[Leaf]) -> tuple[Any, ...]:
    return tuple(_replace(value, found) for value in values)


def _replace(value: Any, found: Iterator[Leaf]) -> Any:
    if isinstance(value, torch.Tensor):
        return next(found)
    if isinstance(value, (list, tuple)):
        return [next(found) if isinstance(item, torch.Tensor) else item for item in value]
    return value


def _fill(value: Any, given: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, Leaf):
        return next(given)
    if isinstance(value, list):
        return [next(given) if isinstance(item, Leaf) else item for item in value]
    return value
