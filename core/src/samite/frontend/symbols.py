"""Sizes of inputs as symbols: which dims vary from call to call, and for which sizes a graph traced with them holds.

A graph is traced with sizes that vary as SymInts of a ShapeEnv. Whatever asked for one of them (a Python branch, an op
that is another one for other sizes) got the answer for the sizes of this call, and left a guard: the graph holds for
all sizes that give the same answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from samite.frontend.source import user_line

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeGuard

__all__ = ["Dim", "Group", "Sizes", "Symbols", "varying"]

Sizes = tuple[tuple[int, ...], ...]
"""The shapes of a call's inputs, in the order of its leaves."""


class Dim(NamedTuple):
    """Dimension `dim` of the input with this number."""

    input: int
    dim: int

    def of(self, sizes: Sizes) -> int:
        return sizes[self.input][self.dim]


Group = tuple[Dim, ...]
"""Dims of one size, which share a symbol."""


def varying(seen: Iterable[Sizes], now: Sizes, fixed: Collection[Dim] = ()) -> tuple[Group, ...]:
    """The dims of `now` that a call of `seen` had in another size, but for `fixed` ones; with nothing seen, all.

    Dims that were equal in all of these calls are a group. 0 and 1 are no sizes of symbols: what is empty or broadcasts
    is another graph.
    """
    calls = [now, *seen]
    groups: dict[tuple[int, ...], list[Dim]] = {}
    for dim in (Dim(i, d) for i, shape in enumerate(now) for d in range(len(shape))):
        history = tuple(dim.of(sizes) for sizes in calls)
        if dim not in fixed and dim.of(now) > 1 and (len(calls) == 1 or len(set(history)) > 1):
            groups.setdefault(history, []).append(dim)
    return tuple(map(tuple, groups.values()))


class Symbols:
    """One symbol for each of `groups`, for a trace at the sizes `now`."""

    def __init__(self, groups: Sequence[Group], now: Sizes) -> None:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

        # As without symbols, a shape or a number that depends on data is refused.
        self.env = ShapeEnv(duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        self._guards = self.env.guards = _Guards()
        self._groups, self._now = groups, now
        self._symbols: list[Any] = []
        self._numbers: dict[Dim, Any] = {}
        for number, group in enumerate(groups):
            source, size = ConstantSource(f"size{number}"), group[0].of(now)
            self._symbols.append(self.env.create_symbol(size, source, dynamic_dim=DimDynamic.DYNAMIC))
            made = self.env.create_symintnode(self._symbols[-1], hint=size, source=source)
            self._numbers |= dict.fromkeys(group, made)

    def shape(self, input: int) -> list[int | torch.SymInt]:
        """The shape of an input, with symbols."""
        return [self._numbers.get(Dim(input, dim), size) for dim, size in enumerate(self._now[input])]

    @property
    def count(self) -> int:
        """How many dims have symbols."""
        return len(self._numbers)

    def fixed(self) -> Mapping[Dim, str]:
        """The dims for which the trace needed the size itself, with the user's line that did so."""
        found: dict[Dim, str] = {}
        for symbol, group in zip(self._symbols, self._groups, strict=True):
            if self.env.replace(symbol).is_number:
                found.update(dict.fromkeys(group, self._guards.line_that_fixed(symbol)))
        return found

    def values(self, sizes: Sizes) -> Mapping[Any, int] | None:
        """What each symbol is at these sizes; None if the graph does not hold for them."""
        values: dict[Any, Any] = {}
        named: dict[Dim, Any] = {}
        for symbol, group in zip(self._symbols, self._groups, strict=True):
            values[symbol] = group[0].of(sizes)
            named |= dict.fromkeys(group, values[symbol])
        for input, (shape, before) in enumerate(zip(sizes, self._now, strict=True)):
            for dim, (size, fixed) in enumerate(zip(shape, before, strict=True)):
                if size != named.get(Dim(input, dim), fixed):
                    return None
        if any(size < 2 for size in values.values()) or not self._guards.hold(values):
            return None
        return values


class _Guards(list["ShapeGuard"]):
    """The guards of a ShapeEnv, and the user's line at which each arose."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def append(self, guard: ShapeGuard) -> None:
        super().append(guard)
        self._lines.append(user_line())

    def line_that_fixed(self, symbol: Any) -> str:
        """Of the guards that equate a symbol with something, the last one's line."""
        for guard, line in zip(reversed(self), reversed(self._lines), strict=True):
            if guard.expr.func.__name__ == "Equality" and symbol in guard.expr.free_symbols:
                return line
        return ""

    def hold(self, values: Mapping[Any, int]) -> bool:
        import sympy

        given = {symbol: sympy.Integer(value) for symbol, value in values.items()}
        return all(guard.expr.xreplace(given) == sympy.true for guard in self)
