"""The way from any layout to any other, as single-axis steps on factors."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from samite.errors import LayoutError
from samite.layout.alignment import Aligned, align
from samite.layout.factor import Dim, Factor
from samite.layout.layout import Layout
from samite.layout.steps import Plan, Step

__all__ = ["bytes_moved", "plan"]

_Stack = tuple[str, ...]  # the axes of one factor, outermost first


def plan(src: Layout, dst: Layout, mesh: Mapping[str, int]) -> Plan:
    """The cheapest path of steps from `src` to `dst`; cached.

    Cheapest by elements received, then by number of steps, among the paths that gather no axis which already is where
    it shall be, and put none down elsewhere. Where the factors of a dim disagree, its innermost axes leave it until
    they agree. Of pinned layouts it is a plan for the ranks of their home. Raises LayoutError if the shapes differ or
    the homes do, or the mesh lacks an axis.
    """
    if src.shape != dst.shape:
        raise LayoutError(f"no way from {src} to {dst}: the shapes differ", help="a reshard keeps the shape")
    if src.at or dst.at:
        src, dst = src.canonical(mesh), dst.canonical(mesh)
        if src.at != dst.at:
            raise LayoutError(
                f"no way from {src} to {dst}: a reshard moves within the ranks that hold a value",
                help="write the value anew in its other home",
            )
        src, dst = src.unpinned(), dst.unpinned()
    return _plan(src, dst, tuple(mesh.items()))


def bytes_moved(src: Layout, dst: Layout, mesh: Mapping[str, int], itemsize: int) -> int:
    """The bytes that each rank receives in `plan(src, dst, mesh)`, with elements of `itemsize` bytes."""
    return plan(src, dst, mesh).elements * itemsize


@lru_cache(maxsize=1 << 14)
def _plan(src: Layout, dst: Layout, mesh_items: tuple[tuple[str, int], ...]) -> Plan:
    mesh = dict(mesh_items)
    src, dst = src.canonical(mesh), dst.canonical(mesh)
    aligned = tuple(align(s, d, mesh) for s, d in zip(src.dims, dst.dims, strict=True))
    search = _Search(mesh, src.dims, aligned, dst.owed, dst.kind)
    start, goal = search.start(src), search.goal()
    # The third entry breaks ties by order of insertion, so that plans are the same in every process.
    heap: list[tuple[int, int, int, _State, tuple[Step, ...]]] = [(0, 0, 0, start, ())]
    seen: set[_State] = set()
    inserted = 0
    while heap:
        spent, _, _, state, path = heapq.heappop(heap)
        if state == goal:
            return Plan(path, spent)
        if state in seen:
            continue
        seen.add(state)
        for elements, step, after in search.moves(state):
            inserted += 1
            heapq.heappush(heap, (spent + elements, len(path) + 1, inserted, after, (*path, step)))
    raise AssertionError(f"no way from {src} to {dst}")  # to gather and reduce all, then shard and owe, is one


class _State(NamedTuple):
    """A node of the search: the axes of every factor of every dim, and the reduction that is owed.

    `blocking` are the axes of each dim that keep it from being aligned. While there are any, its factors are those of
    the source; then they are the aligned ones.
    """

    stacks: tuple[tuple[_Stack, ...], ...]
    blocking: tuple[frozenset[str], ...]
    owed: frozenset[str]
    kind: str

    def put(self, dim: int, place: int, stack: _Stack) -> _State:
        stacks = (*self.stacks[dim][:place], stack, *self.stacks[dim][place + 1 :])
        return _State((*self.stacks[:dim], stacks, *self.stacks[dim + 1 :]), self.blocking, self.owed, self.kind)

    def pay(self, axis: str) -> _State:
        owed = self.owed - {axis}
        return _State(self.stacks, self.blocking, owed, self.kind if owed else "")


class _Slot(NamedTuple):
    """One factor of a state, the axis it shall get next ("": none), and whether its innermost one must leave."""

    dim: int
    place: int
    factor: Factor
    wanted: str
    leaves: bool


@dataclass(frozen=True)
class _Search:
    """From `dims`, by way of `aligned`, to a destination that owes `kind` over `owed`."""

    mesh: dict[str, int]
    dims: tuple[Dim, ...]
    aligned: tuple[Aligned, ...]
    owed: frozenset[str]
    kind: str

    def start(self, src: Layout) -> _State:
        dims = tuple(dim if a.gathered else a.src for dim, a in zip(self.dims, self.aligned, strict=True))
        blocking = tuple(a.gathered for a in self.aligned)
        return _State(tuple(map(_stacks, dims)), blocking, src.owed, src.kind)

    def goal(self) -> _State:
        nothing: tuple[frozenset[str], ...] = (frozenset(),) * len(self.dims)
        return _State(tuple(_stacks(a.dst) for a in self.aligned), nothing, self.owed, self.kind)

    def moves(self, state: _State) -> Iterator[tuple[int, Step, _State]]:
        """(elements each rank receives, step, state after it) for every step that may be on a cheapest path."""
        mesh, slots = self.mesh, self._slots(state)
        factors = tuple(slot.factor for slot in slots)
        lengths = [f.local(mesh) for f in factors]
        local = prod(lengths)
        used = {axis for f in factors for axis in f.axes}
        ready = {slot.wanted: k for k, slot in enumerate(slots) if slot.wanted}

        def piece(target: int, axis: str) -> int:
            f = factors[target]
            cut = Factor(f.size, (*f.axes, axis)).local(mesh)
            return prod(cut if k == target else length for k, length in enumerate(lengths))

        for axis, n in mesh.items():
            target = ready.get(axis)
            if axis in state.owed:
                if state.kind != self.kind or axis not in self.owed:
                    paid = state.pay(axis)
                    yield 2 * (n - 1) * -(-local // n), Step("all_reduce", axis, None, None, factors, state.kind), paid
                    if target is not None:
                        step = Step("reduce_scatter", axis, None, target, factors, state.kind)
                        yield (n - 1) * piece(target, axis), step, _push(paid, slots[target])
            elif axis not in used:
                if target is not None:
                    yield 0, Step("shard", axis, None, target, factors), _push(state, slots[target])
                if axis in self.owed and state.kind in ("", self.kind):
                    after = _State(state.stacks, state.blocking, state.owed | {axis}, self.kind)
                    yield 0, Step("owe", axis, None, None, factors, self.kind), after
        for source, slot in enumerate(slots):
            if not slot.leaves:
                continue
            axis = slot.factor.axes[-1]
            popped, target = self._pop(state, slot), ready.get(axis)
            yield (mesh[axis] - 1) * local, Step("all_gather", axis, source, None, factors), popped
            if target is not None:
                step = Step("all_to_all", axis, source, target, factors)
                yield (mesh[axis] - 1) * piece(target, axis), step, _push(popped, slots[target])

    def _slots(self, state: _State) -> list[_Slot]:
        slots: list[_Slot] = []
        for dim, (stacks, blocking, aligned) in enumerate(zip(state.stacks, state.blocking, self.aligned, strict=True)):
            factors = self.dims[dim] if blocking else aligned.dst
            for place, (stack, f) in enumerate(zip(stacks, factors, strict=True)):
                if blocking:
                    wanted, leaves = "", bool(stack) and stack[-1] in blocking
                else:
                    stays = f.axes[: len(stack)] == stack
                    wanted, leaves = f.axes[len(stack)] if stays and f.axes != stack else "", not stays
                slots.append(_Slot(dim, place, Factor(f.size, stack), wanted, leaves))
        return slots

    def _pop(self, state: _State, slot: _Slot) -> _State:
        """The state without the innermost axis of a slot, its dim aligned if that was the last in the way."""
        dim, axes = slot.dim, slot.factor.axes
        after = state.put(dim, slot.place, axes[:-1])
        if not state.blocking[dim]:
            return after
        left = state.blocking[dim] - {axes[-1]}
        blocking = (*state.blocking[:dim], left, *state.blocking[dim + 1 :])
        aligned = after.stacks[dim] if left else _stacks(self.aligned[dim].src)
        return _State((*after.stacks[:dim], aligned, *after.stacks[dim + 1 :]), blocking, state.owed, state.kind)


def _push(state: _State, slot: _Slot) -> _State:
    """The state with the axis that a slot wants."""
    return state.put(slot.dim, slot.place, (*slot.factor.axes, slot.wanted))


def _stacks(dim: Dim) -> tuple[_Stack, ...]:
    return tuple(f.axes for f in dim)
