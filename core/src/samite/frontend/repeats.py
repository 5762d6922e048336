"""Recognising that a call has the structure of the one before, without building its tree again.

Steps are called in loops on the same objects, and what makes a program another one changes rarely. So a tree remembers
the objects that it was built from: as long as they are the same, by identity, only the inputs are new. A call that is
not recognised is walked again, at no risk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from samite.frontend.calls import Call, bind_as
from samite.frontend.hyperparameters import Entry, loose, number_names, structure, values_of
from samite.frontend.keys import (
    CACHES,
    HOOKS,
    MODULE,
    STEP_HOOKS,
    ambient,
    freeze,
    has_attributes,
    is_constant,
    own_attributes,
)
from samite.frontend.places import Place
from samite.frontend.slots import ArgumentSlot, Leaf
from samite.frontend.state import StateTree

__all__ = ["Trees"]


_OF_TREES = (Tensor, nn.Module, Optimizer)


class Trees:
    """The state trees of successive calls of `fn`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._last: _Known | None = None
        self._read: dict[Hashable, _Read] = {}  # by what the key is without it

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[StateTree, Hashable]:
        """The tree of `fn(*args, **kwargs)` and its key. Raises InputError if the arguments do not fit `fn`."""
        if self._last is not None and (tree := self._last.again(args, kwargs)) is not None:
            return tree, self._last.key
        tree = StateTree.from_call(self._fn, args, kwargs)
        return tree, self._know(tree, tree.key()).key

    def key_after(self, tree: StateTree, read: Collection[Entry], places: Iterable[Place] = ()) -> Hashable:
        """The key of the last tree, now that a capture has read these entries and places: their values belong to it."""
        plain = tree.key()
        known = self._read.get(plain, _Read())
        found = {place: place for place in known.places}
        for place in places:
            found.setdefault(place, place).content |= place.content
        self._read[plain] = _Read(known.entries.union(read), tuple(found))
        return self._know(tree, plain).key

    def _know(self, tree: StateTree, plain: Hashable) -> _Known:
        read = self._read.get(plain, _Read())
        self._last = _Known(tree, tree.key(read.entries, read.places) if read != _Read() else plain, read)
        return self._last


@dataclass(frozen=True)
class _Read:
    """What captures of calls of one structure have read: entries of optimizers' groups, and places anywhere else."""

    entries: frozenset[Entry] = frozenset()
    places: tuple[Place, ...] = ()


class _Known:
    """A tree, and what it depends on, as that was when it was built."""

    def __init__(self, tree: StateTree, key: Hashable, read: _Read) -> None:
        self.tree, self.key = tree, key
        self._optimizers = [optimizer for _, optimizer in tree.optimizers]
        attributes = [vars(m) for _, m in tree.modules]
        self._users = [vars(v) for _, v in tree.objects if has_attributes(v)]
        self._tables = [*attributes, *_tables_of_modules(tree), *_tables_of_optimizers(tree)]
        self._loose = [loose(number_names(optimizer, group)) for optimizer, group in self._groups()]
        held = [v for table in attributes for k, v in table.items() if k not in MODULE and k not in CACHES]
        held += [v for o in self._optimizers for v in own_attributes(o).values() if v is not o.defaults]
        self._places = [place.now for place in read.places]
        held += [place.now() for place in read.places if place.content]
        self._containers = [v for v in held if type(v) in (list, dict, set)]
        self._held = [tree.tensors[at] for at in tree.slots if tree.leaves[at].role != "input"]
        self._entries = read.entries
        self._objects, self._facts = self._objects_now(), self._facts_now()

    def again(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StateTree | None:
        """The tree of a call with these arguments, if it differs from `tree` in the inputs alone."""
        call = bind_as(self.tree.call, args, kwargs)
        inputs = None if call is None else self._inputs(call)
        if call is None or inputs is None:
            return None
        now = self._objects_now()
        if len(now) != len(self._objects) or not all(map(is_, now, self._objects)) or self._facts_now() != self._facts:
            return None
        return _with_inputs(self.tree, call, inputs)

    def _objects_now(self) -> list[object]:
        """All that must be the same objects."""
        now: list[object] = list(chain.from_iterable(map(dict.values, self._tables)))
        for (_, group), outside in zip(self._groups(), self._loose, strict=False):  # as many, or the facts differ
            now.append(group)
            now += group["params"]
            now += [value for key, value in group.items() if key not in outside]
        for optimizer in self._optimizers:
            now += chain.from_iterable(map(dict.values, optimizer.state.values()))
        for table in self._users:  # their other attributes are places, if they are read
            now += [value for value in table.values() if isinstance(value, _OF_TREES)]
        now += [value() for value in self._places]
        return now

    def _facts_now(self) -> Hashable:
        """All that must be equal: what may change while the objects stay the same."""
        return (
            [(x.requires_grad, x.grad is None, x.shape, x.dtype) for x in self._held],
            [structure(optimizer, group) for optimizer, group in self._groups()],
            values_of(self.tree.optimizers, self._entries),
            [freeze(container) for container in self._containers],
            [freeze(value) for _, value in self.tree.objects if not has_attributes(value)],
            ambient(),
        )

    def _groups(self) -> Iterator[tuple[Optimizer, dict[str, Any]]]:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield optimizer, group

    def _inputs(self, call: Call) -> dict[int, Tensor] | None:
        """leaf -> the tensor that takes its place; None if another argument changed, or which are the same tensor."""
        tree, inputs = self.tree, dict[int, Tensor]()
        for old, new in zip(tree.call.values, call.values, strict=True):
            at = tree.index.get(id(old), -1)
            if at >= 0 and tree.leaves[at].role == "input":
                if not _alike(new, tree.tensors[at]) or inputs.setdefault(at, new) is not new:
                    return None
                if tree.leaves[tree.index.get(id(new), at)].role != "input":
                    return None  # a parameter or buffer, passed as an argument too
            elif new is not old and not (is_constant(new) and freeze(new) == freeze(old)):
                return None
        return inputs if len({id(x) for x in inputs.values()}) == len(inputs) else None


def _alike(new: object, old: Tensor) -> bool:
    return (
        isinstance(new, Tensor)
        and new.dim() == old.dim()
        and new.dtype == old.dtype
        and new.device == old.device
        and new.layout == old.layout
        and not (new.requires_grad or old.requires_grad)
    )


def _with_inputs(tree: StateTree, call: Call, inputs: Mapping[int, Tensor]) -> StateTree:
    leaves, tensors = tree.leaves.copy(), tree.tensors.copy()
    slots, index = tree.slots.copy(), {i: at for i, at in tree.index.items() if at not in inputs}
    for at, tensor in inputs.items():
        slot = slots[at] = ArgumentSlot(tensor)
        leaves[at], tensors[at] = Leaf(leaves[at].name, "input", "", slot), tensor
        index[id(tensor)] = at
    return replace(tree, call=call, leaves=leaves, tensors=tensors, slots=slots, index=index)


def _tables_of_optimizers(tree: StateTree) -> Iterator[dict[str, Any]]:
    for _, optimizer in tree.optimizers:
        yield from (vars(optimizer), optimizer.defaults)
        yield from (vars(optimizer)[name] for name in STEP_HOOKS)


def _tables_of_modules(tree: StateTree) -> Iterator[dict[str, Any]]:
    for _, module in tree.modules:
        yield from (module._parameters, module._buffers, module._modules)
        yield from (vars(module)[name] for name in HOOKS)
