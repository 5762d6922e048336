"""The state tree: every tensor that a call reaches through its arguments, by name, and where each lives.

Names start with the function's parameter name: parameter "model.blocks.0.fc.weight", buffer "model.running_mean",
gradient "model.blocks.0.fc.weight.grad", optimizer state "optimizer.blocks.0.fc.weight.exp_avg", learning rate
"optimizer.param_groups.0.lr", that and the other numbers of a group "optimizer.param_groups.0.numbers", tensors
"tokens", "batch.x", "batch.0". A function that is a module, or a method of one, names what it owns without a prefix:
"blocks.0.fc.weight".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from samite.frontend.calls import Call, bind
from samite.frontend.hyperparameters import Entry, constants, structure, values_of
from samite.frontend.keys import CACHES, HOOKS, MODULE, Key, ambient, freeze, has_attributes, own_attributes
from samite.frontend.places import Place
from samite.frontend.slots import ArgumentSlot, EntrySlot, GradientSlot, Leaf, TensorSlot

__all__ = ["StateTree"]


@dataclass
class StateTree:
    """What a call reaches.

    `leaves` are the tensors that are there, in the order of a capture's arguments; `tensors` are what they were when
    the tree was made. `places` are all slots that hold a leaf (tied weights have several), with the leaf's index.
    `objects` are the non-tensor arguments.
    """

    call: Call
    leaves: list[Leaf] = field(default_factory=list[Leaf])
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    places: list[tuple[TensorSlot, int]] = field(default_factory=list[tuple[TensorSlot, int]])
    modules: list[tuple[str, nn.Module]] = field(default_factory=list[tuple[str, nn.Module]])
    optimizers: list[tuple[str, Optimizer]] = field(default_factory=list[tuple[str, Optimizer]])
    objects: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    slots: dict[int, TensorSlot | ArgumentSlot] = field(default_factory=dict[int, TensorSlot | ArgumentSlot])
    """leaf of a parameter, buffer or argument -> its slot."""
    index: dict[int, int] = field(default_factory=dict[int, int])
    """id of a parameter, buffer or argument -> its leaf."""
    state_names: dict[str, tuple[Optimizer, int]] = field(default_factory=dict[str, tuple[Optimizer, int]])
    """"optimizer.blocks.0.fc.weight" -> the optimizer, and the leaf of the parameter."""
    found: dict[object, Any] = field(default_factory=dict[object, Any], compare=False)
    """What programs found out of its state, by program: as good for trees that differ from this one in inputs alone."""

    @staticmethod
    def from_call(
        fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> StateTree:
        """The tree of `fn(*args, **kwargs)`; reads no data. Raises InputError if the arguments do not fit `fn`."""
        from samite.frontend.walk import walk

        return walk(bind(fn, args, kwargs or {}))

    @cached_property
    def by_name(self) -> dict[str, int]:
        return {leaf.name: i for i, leaf in enumerate(self.leaves)}

    def leaf(self, name: str) -> Leaf:
        """The leaf of that name; gradients and optimizer state may be absent. Raises KeyError."""
        if (at := self.by_name.get(name)) is not None:
            return self.leaves[at]
        owner, _, last = name.rpartition(".")
        if last == "grad" and owner in self.by_name:
            return Leaf(name, "gradient", owner, GradientSlot(self.slots[self.by_name[owner]]))
        if owner in self.state_names:
            optimizer, at = self.state_names[owner]
            return Leaf(name, "optimizer", self.leaves[at].name, EntrySlot(optimizer, self.slots[at], last))
        raise KeyError(name)

    @cached_property
    def inputs(self) -> range:
        """The leaves that are inputs: the last ones."""
        count = len(self.leaves)
        first = next((at + 1 for at in reversed(range(count)) if self.leaves[at].role != "input"), 0)
        return range(first, count)

    @cached_property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs, in order."""
        return tuple(tuple(self.tensors[at].shape) for at in self.inputs)

    def key(self, read: Collection[Entry] = (), places: Collection[Place] = ()) -> Hashable:
        """Equal for calls of one structure: what programs are for, but for data and the sizes of inputs.

        `read` are the hyper-parameters that a capture of such a call read as Python values, and `places` where else it
        read Python's state (`Capture`).
        """
        call = self.call
        return Key(
            call.spec,
            tuple(self.index.get(id(value), -1) for value in call.values),
            tuple((x.name, x.role, *_signature(x, t)) for x, t in zip(self.leaves, self.tensors, strict=True)),
            tuple(at for _, at in self.places),
            tuple((name, type(m), m.training, _attributes(m)) for name, m in self.modules),
            tuple((name, *self._optimizer(o)) for name, o in self.optimizers),
            values_of(self.optimizers, read),
            tuple((name, type(v) if has_attributes(v) else freeze(v)) for name, v in self.objects),
            tuple(place.picture() for place in places),
            ambient(),
        )

    def _optimizer(self, optimizer: Optimizer) -> Iterator[Hashable]:
        yield type(optimizer)
        yield tuple((k, freeze(v)) for k, v in own_attributes(optimizer).items())
        for group in optimizer.param_groups:
            yield structure(optimizer, group), constants(optimizer, group)
            yield tuple(self.index[id(p)] for p in group["params"])


def _signature(leaf: Leaf, x: Tensor) -> tuple[Hashable, ...]:
    return x.dim() if leaf.role == "input" else x.shape, x.dtype, x.device, x.requires_grad


_HOOKS = frozenset(HOOKS)


def _attributes(module: nn.Module) -> Hashable:
    """The attributes that a module's class adds; hooks only where there are any."""
    return tuple(
        (k, freeze(v))
        for k, v in vars(module).items()
        if (k not in MODULE and k not in CACHES and not isinstance(v, Tensor)) or (k in _HOOKS and v)
    )
