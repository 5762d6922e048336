"""All ranks of a mesh in one process: what layouts and plans mean, with nothing taken from how they are computed.

A distributed value is a list of arrays, one a rank. Padding is poisoned, what is owed is cut into unlike terms (so that
nothing passes because padding is zero or because every rank holds the sum), and every number is exact in its dtype, so
that results are compared with ==.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from samite.layout import Factor, Layout, Plan, Step, identity, places
from samite.mesh import Mesh

Array = NDArray[np.generic]
REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def poisoned(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    return np.full(shape, np.nan if dtype.kind == "f" else 10**6 + 7, dtype)


class Simulator:
    """Runs plans on all ranks of `mesh`; `moved` counts the elements that each rank has received, `peak` those of the
    largest buffer."""

    def __init__(self, mesh: Mesh, seed: int = 0) -> None:
        self.mesh, self.moved, self.peak, self.random = mesh, 0, 0, np.random.default_rng(seed)
        self.coordinates = [mesh.coordinates(rank) for rank in range(mesh.size)]

    def scatter(self, x: Array, layout: Layout) -> list[Array]:
        """The local buffers of a global array."""
        owed = [axis for axis in self.mesh if axis in layout.owed]
        terms = {(): x}
        for axis in owed:
            cut = {key: self._terms(term, layout.kind, self.mesh[axis]) for key, term in terms.items()}
            terms = {(*key, i): term for key, some in cut.items() for i, term in enumerate(some)}
        buffers: list[Array] = []
        for at in self.coordinates:
            local, whole = self._valid(layout, at)
            if not layout.held_by(at):
                buffers.append(poisoned((0,), x.dtype))
                continue
            buffer = poisoned(layout.local_shape(self.mesh), x.dtype)
            buffer[local] = terms[tuple(at[axis] for axis in owed)][whole]
            buffers.append(buffer)
        return buffers

    def gather(self, buffers: list[Array], layout: Layout) -> Array:
        """The global array. Fails if a shape is wrong, replicas differ, or an element is nowhere."""
        for axis in sorted(layout.owed):
            buffers = [self._reduce(buffers, peers, layout.kind) for peers in self._peers(axis)]
        out, seen = poisoned(layout.shape, buffers[0].dtype), np.zeros(layout.shape, bool)
        for at, buffer in zip(self.coordinates, buffers, strict=True):
            if not layout.held_by(at):
                continue
            assert buffer.shape == layout.local_shape(self.mesh)
            local, whole = self._valid(layout, at)
            assert (~seen[whole] | (out[whole] == buffer[local])).all(), "replicas differ"
            out[whole], seen[whole] = buffer[local], True
        assert seen.all(), "an element is on no rank"
        return out

    def run(self, plan: Plan, buffers: list[Array], dst: Layout) -> list[Array]:
        """The buffers after a plan, by the steps that its documentation names."""
        for step in plan.steps:
            buffers = self._step(step, buffers)
        return [buffer.reshape(dst.local_shape(self.mesh)) for buffer in buffers]

    def _step(self, step: Step, buffers: list[Array]) -> list[Array]:
        n = self.mesh[step.axis]
        index = [at[step.axis] for at in self.coordinates]
        buffers = [buffer.reshape(step.slots(self.mesh)) for buffer in buffers]
        pieces: list[list[Array]] = []
        if step.target is not None:
            length = n * step.chunk(self.mesh)
            buffers = [self._pad(buffer, step.target, length) for buffer in buffers]
            pieces = [np.split(buffer, n, step.target) for buffer in buffers]
        self.peak = max(self.peak, buffers[0].size)
        if step.verb == "shard":
            buffers = [mine[i] for mine, i in zip(pieces, index, strict=True)]
        elif step.verb == "owe":
            neutral = identity(step.kind, str(buffers[0].dtype))
            buffers = [b if i == 0 else np.full_like(b, neutral) for b, i in zip(buffers, index, strict=True)]
        elif step.verb == "all_reduce":
            self.moved += 2 * (n - 1) * -(-buffers[0].size // n)
            buffers = [self._reduce(buffers, peers, step.kind) for peers in self._peers(step.axis)]
        elif step.verb == "reduce_scatter":
            self.moved += (n - 1) * pieces[0][0].size
            buffers = [
                self._reduce([mine[i] for mine in pieces], peers, step.kind)
                for peers, i in zip(self._peers(step.axis), index, strict=True)
            ]
        elif step.verb == "all_gather":
            self.moved += (n - 1) * buffers[0].size
            buffers = [np.concatenate([buffers[p] for p in peers], step.source) for peers in self._peers(step.axis)]
        else:
            assert step.verb == "all_to_all"
            self.moved += (n - 1) * pieces[0][0].size
            buffers = [
                np.concatenate([pieces[p][i] for p in peers], step.source)
                for peers, i in zip(self._peers(step.axis), index, strict=True)
            ]
        self.peak = max(self.peak, buffers[0].size)
        if step.source is not None:
            buffers = [b[(slice(None),) * step.source + (slice(step.gathered(self.mesh)),)] for b in buffers]
        return buffers

    def _peers(self, axis: str) -> list[tuple[int, ...]]:
        return [self.mesh.peers(rank, (axis,)) for rank in range(self.mesh.size)]

    def _reduce(self, buffers: list[Array], peers: tuple[int, ...], kind: str) -> Array:
        return REDUCE[kind].reduce([buffers[p] for p in peers])

    def _pad(self, x: Array, slot: int, length: int) -> Array:
        padding = poisoned((*x.shape[:slot], length - x.shape[slot], *x.shape[slot + 1 :]), x.dtype)
        return np.concatenate([x, padding], slot)

    def _valid(self, layout: Layout, at: Mapping[str, int]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Where the valid elements are in the buffer, and in the global array."""
        both = [places(dim, self.mesh, at) for dim in layout.dims]
        local, whole = (np.ix_(*(np.array(side[k], int) for side in both)) for k in (0, 1))
        return local, whole

    def _terms(self, x: Array, kind: str, n: int) -> list[Array]:
        """n unlike arrays whose reduction is x."""
        owner = self.random.integers(0, n, x.shape)
        if kind == "sum":
            noise = [self.random.integers(-9, 10, x.shape).astype(x.dtype) for _ in range(n - 1)]
            return [*noise, x - sum(noise)] if noise else [x]
        if kind == "prod":  # the product of all signs is 1
            signs = [self.random.choice([-1, 1], x.shape).astype(x.dtype) for _ in range(n - 1)]
            signs.append(prod(signs, start=np.ones_like(x)))
            return [np.where(owner == i, x, 1).astype(x.dtype) * sign for i, sign in enumerate(signs)]
        worse = -1 if kind == "max" else 1
        return [np.where(owner == i, x, x + worse * self.random.integers(0, 5, x.shape)) for i in range(n)]


@st.composite
def meshes(draw: st.DrawFn, ranks: int = 12) -> Mesh:
    """Meshes of up to three axes; some axes have size 1."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda sizes: prod(sizes) <= ranks))
    return Mesh(tuple("abc"[: len(shape)]), tuple(shape))


@st.composite
def layouts(
    draw: st.DrawFn, mesh: Mesh, shape: tuple[int, ...], kinds: tuple[str, ...] = tuple(REDUCE), pins: bool = False
) -> Layout:
    """Any layout of a shape: every dim cut into factors anywhere, every axis on any factor, owed, unused, or pinned."""
    sizes = [draw(factorizations(size)) for size in shape]
    slots = [(i, j) for i, dim in enumerate(sizes) for j in range(len(dim))]
    kind = draw(st.sampled_from(kinds)) if kinds else ""
    stacks: dict[tuple[int, int], tuple[str, ...]] = dict.fromkeys(slots, ())
    owed: set[str] = set()
    at: dict[str, int] = {}
    for axis in draw(st.permutations(mesh.axes)):
        where = draw(st.sampled_from([*slots, None, *(["owed"] if kind else []), *(["at"] if pins else [])]))
        if isinstance(where, tuple):
            stacks[where] += (axis,)
        elif where == "at":
            at[axis] = draw(st.integers(0, mesh[axis] - 1))
        elif where:
            owed.add(axis)
    dims = tuple(tuple(Factor(n, stacks[i, j]) for j, n in enumerate(dim)) for i, dim in enumerate(sizes))
    return Layout(dims, kind if owed else "", frozenset(owed)).pinned(at)


@st.composite
def factorizations(draw: st.DrawFn, size: int) -> list[int]:
    """Up to three factors with this product."""
    out: list[int] = []
    for _ in range(draw(st.integers(0, 2))):
        divisors = [d for d in range(1, size + 1) if size % d == 0] or [1, 2, 3]
        out.append(draw(st.sampled_from(divisors)))
        size //= out[-1]
    return [*out, size]


def shapes(dims: int = 3, largest: int = 12) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, largest), max_size=dims).map(tuple)


def numbers(shape: tuple[int, ...], dtype: str = "float64") -> Array:
    """A global array without a repeated value or a zero."""
    return (np.arange(1, prod(shape) + 1) * (-1) ** np.arange(prod(shape))).reshape(shape).astype(dtype)


def every_factorization(size: int) -> list[tuple[int, ...]]:
    """All factor sizes with this product, at most three, with factors of 1."""
    return [sizes for n in (1, 2, 3) for sizes in product(range(1, size + 1), repeat=n) if prod(sizes) == size]
