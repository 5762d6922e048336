"""The way from any layout to any other, as single-axis steps on factors."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal, NamedTuple

from samite.errors import LayoutError
from samite.layout.alignment import align
from samite.layout.factor import Factor, without
from samite.layout.layout import Layout

__all__ = ["Plan", "Step", "Verb", "bytes_moved", "plan"]

Verb = Literal["all_gather", "all_reduce", "reduce_scatter", "all_to_all", "shard", "owe"]


@dataclass(frozen=True)
class Step:
    """One step over one mesh axis, on the local buffer seen as one slot a factor.

    `factors` are those of all dims in order, before the step. With n = mesh[axis], i = the rank's index on it, and the
    peers those ranks that differ on it alone, in order of index, an executor

    1. reshapes its buffer to `slots(mesh)`;
    2. if there is a `target`, pads that slot at its end to n * `chunk(mesh)` (with anything: padding is undefined), and
       calls its n equal parts pieces;
    3. does the verb:

       ================  =====================================================================================
       shard             keep piece i of `target` (local)
       owe               keep the buffer if i == 0, else fill it with `identity(kind, dtype)` (local)
       all_reduce        reduce by `kind` over the peers
       reduce_scatter    reduce by `kind` over the peers, keep piece i of `target`
       all_gather        concatenate the peers' buffers along `source`
       all_to_all        send piece j of `target` to peer j, concatenate what comes along `source`
       ================  =====================================================================================

    4. if there is a `source`, cuts that slot at its end to `gathered(mesh)`.

    Then `target` has the axis as its innermost and `source` has lost it. After the last step the buffer is reshaped to
    the destination's local shape. `kind` is "" for verbs that do not reduce.
    """

    verb: Verb
    axis: str
    source: int | None
    target: int | None
    factors: tuple[Factor, ...]
    kind: str = ""

    def slots(self, mesh: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of the local buffer before the step, one dim a factor."""
        return tuple(f.local(mesh) for f in self.factors)

    def chunk(self, mesh: Mapping[str, int]) -> int:
        """The length of slot `target` after the step."""
        assert self.target is not None
        f = self.factors[self.target]
        return Factor(f.size, (*f.axes, self.axis)).local(mesh)

    def gathered(self, mesh: Mapping[str, int]) -> int:
        """The length of slot `source` after the step: what it was before `axis` cut it."""
        assert self.source is not None
        return self.factors[self.source].chunks(mesh)[-2]


@dataclass(frozen=True)
class Plan:
    """The steps in order, and the elements that each rank receives in all of them (padding moves too).

    An all_reduce counts as reduce_scatter and all_gather.
    """

    steps: tuple[Step, ...]
    elements: int


class _State(NamedTuple):
    """A node of the search: the axes of every slot, and what is owed."""

    stacks: tuple[tuple[str, ...], ...]
    owed: frozenset[str]
    kind: str

    def push(self, slot: int, axis: str) -> _State:
        stacks = (*self.stacks[:slot], (*self.stacks[slot], axis), *self.stacks[slot + 1 :])
        return _State(stacks, self.owed, self.kind)

    def pop(self, slot: int) -> _State:
        stacks = (*self.stacks[:slot], self.stacks[slot][:-1], *self.stacks[slot + 1 :])
        return _State(stacks, self.owed, self.kind)

    def pay(self, axis: str) -> _State:
        owed = self.owed - {axis}
        return _State(self.stacks, owed, self.kind if owed else "")


def plan(src: Layout, dst: Layout, mesh: Mapping[str, int]) -> Plan:
    """The cheapest path of steps from `src` to `dst`; cached.

    Raises LayoutError if the shapes differ or the mesh lacks an axis.

    Where the factors of a dim disagree, its innermost axes are gathered until they agree. From there the path is the
    shortest by elements received, then by number of steps, among those that put an axis down only where it stays.
    """
    if src.shape != dst.shape:
        raise LayoutError(f"no way from {src} to {dst}: the shapes differ", help="a reshard keeps the shape")
    return _plan(src, dst, tuple(mesh.items()))


def bytes_moved(src: Layout, dst: Layout, mesh: Mapping[str, int], itemsize: int) -> int:
    """The bytes that each rank receives in `plan(src, dst, mesh)`, with elements of `itemsize` bytes."""
    return plan(src, dst, mesh).elements * itemsize


@lru_cache(maxsize=1 << 14)
def _plan(src: Layout, dst: Layout, mesh_items: tuple[tuple[str, int], ...]) -> Plan:
    mesh = dict(mesh_items)
    src, dst = src.canonical(mesh), dst.canonical(mesh)
    gathers, have, want, cost = _align_all(src, dst, mesh)
    start = _State(tuple(f.axes for f in have), src.owed, src.kind)
    goal = _State(tuple(f.axes for f in want), dst.owed, dst.kind)
    sizes = tuple(f.size for f in want)
    # The third entry breaks ties by order of insertion, so that plans are the same in every process.
    heap: list[tuple[int, int, int, _State, tuple[Step, ...]]] = [(0, 0, 0, start, ())]
    seen: set[_State] = set()
    inserted = 0
    while heap:
        spent, _, _, state, path = heapq.heappop(heap)
        if state == goal:
            return Plan((*gathers, *path), cost + spent)
        if state in seen:
            continue
        seen.add(state)
        for elements, step, after in _moves(state, goal, sizes, mesh):
            inserted += 1
            heapq.heappush(heap, (spent + elements, len(path) + 1, inserted, after, (*path, step)))
    raise AssertionError(f"no way from {src} to {dst}")  # gathering and reducing all, then shard and owe, is one


def _align_all(src: Layout, dst: Layout, mesh: Mapping[str, int]) -> tuple[list[Step], list[Factor], list[Factor], int]:
    """(the gathers without which factors disagree, the factors of src after them, those of dst, elements gathered)."""
    steps: list[Step] = []
    have: list[Factor] = []
    want: list[Factor] = []
    cost = 0
    now = list(src.dims)
    for i, (s, d) in enumerate(zip(src.dims, dst.dims, strict=True)):
        aligned = align(s, d, mesh)
        for axis in aligned.gathered:
            flat = tuple(f for dim in now for f in dim)
            slot = next(k for k, f in enumerate(flat) if axis in f.axes)
            steps.append(Step("all_gather", axis, slot, None, flat))
            cost += (mesh[axis] - 1) * prod(f.local(mesh) for f in flat)
            now = list(without(now, (axis,)))
        now[i] = aligned.src
        have += aligned.src
        want += aligned.dst
    return steps, have, want, cost


def _moves(
    state: _State, goal: _State, sizes: tuple[int, ...], mesh: Mapping[str, int]
) -> Iterator[tuple[int, Step, _State]]:
    """(elements each rank receives, step, state after it) for every step that may be on a shortest path."""
    factors = tuple(map(Factor, sizes, state.stacks))
    lengths = [f.local(mesh) for f in factors]
    local = prod(lengths)
    used = {axis for stack in state.stacks for axis in stack}
    ready = {  # axis -> the slot whose next axis it shall be
        want[len(stack)]: slot
        for slot, (stack, want) in enumerate(zip(state.stacks, goal.stacks, strict=True))
        if len(stack) < len(want) and want[: len(stack)] == stack
    }

    def piece(slot: int, axis: str) -> int:
        cut = Factor(sizes[slot], (*state.stacks[slot], axis)).local(mesh)
        return prod(cut if k == slot else length for k, length in enumerate(lengths))

    for axis, n in mesh.items():
        slot = ready.get(axis)
        if axis in state.owed:
            if state.kind != goal.kind or axis not in goal.owed:
                step = Step("all_reduce", axis, None, None, factors, state.kind)
                yield 2 * (n - 1) * -(-local // n), step, state.pay(axis)
                if slot is not None:
                    step = Step("reduce_scatter", axis, None, slot, factors, state.kind)
                    yield (n - 1) * piece(slot, axis), step, state.pay(axis).push(slot, axis)
        elif axis not in used:
            if slot is not None:
                yield 0, Step("shard", axis, None, slot, factors), state.push(slot, axis)
            if axis in goal.owed and state.kind in ("", goal.kind):
                after = _State(state.stacks, state.owed | {axis}, goal.kind)
                yield 0, Step("owe", axis, None, None, factors, goal.kind), after
    for source, (stack, want) in enumerate(zip(state.stacks, goal.stacks, strict=True)):
        if not stack or want[: len(stack)] == stack:
            continue
        axis, slot = stack[-1], ready.get(stack[-1])
        yield (mesh[axis] - 1) * local, Step("all_gather", axis, source, None, factors), state.pop(source)
        if slot is not None and slot != source:
            step = Step("all_to_all", axis, source, slot, factors)
            yield (mesh[axis] - 1) * piece(slot, axis), step, state.pop(source).push(slot, axis)
