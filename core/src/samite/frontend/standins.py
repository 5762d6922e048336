"""Stand-ins: while a function is traced, the user's own objects hold fake tensors; afterwards they are as before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samite.frontend.groups import Group
from samite.frontend.hyperparameters import NUMBERS, RATE, Entry, number_names, traceable
from samite.frontend.slots import Role
from samite.frontend.state import StateTree

__all__ = ["StandIns"]


@dataclass
class StandIns:
    """`tensors[i]` stands for leaf i of `tree`: parameters are Parameters, and know hooks and attributes.

    `shapes` are those that they begin with; `read` are the hyper-parameters that code reads as Python values while they
    are installed.
    """

    tree: StateTree
    tensors: list[Tensor]
    shapes: list[torch.Size]
    read: set[Entry] = field(default_factory=set[Entry])

    @staticmethod
    def of(tree: StateTree, values: Sequence[Tensor]) -> StandIns:
        """Stand-ins that hold `values`, one for each leaf, and share nothing else with the user's tensors."""
        made = zip(tree.tensors, values, tree.leaves, strict=True)
        tensors = [_stand_in(user, value, leaf.role) for user, value, leaf in made]
        return StandIns(tree, tensors, [value.shape for value in values])

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put them where the user's tensors are."""
        tree = self.tree
        lists = [(vars(m), k, v) for _, m in tree.modules for k, v in vars(m).items() if _holds_leaves(v, tree)]
        kept = [(slot.container, slot.key, slot.get()) for slot, _ in tree.places]
        optimizers = [(o, o.param_groups, o.state, o.defaults) for _, o in tree.optimizers]
        forms = [(self._groups(name, o), self._state(o)) for name, o in tree.optimizers]
        held = [(group, dict(group)) for _, o in tree.optimizers for group in o.param_groups]
        hidden = [group.hidden() for groups, _ in forms for group in groups]
        try:
            for slot, at in tree.places:
                slot.container[slot.key] = self.tensors[at]
            for attributes, key, values in lists:
                attributes[key] = [self.replace(x) for x in values]
            for leaf, tensor in zip(tree.leaves, self.tensors, strict=True):
                if leaf.role == "gradient":
                    self.tensors[tree.by_name[leaf.owner]].grad = tensor
            for (group, _), entries in zip(held, hidden, strict=True):
                group.update(entries)
            for (_, optimizer), (groups, state) in zip(tree.optimizers, forms, strict=True):
                optimizer.param_groups, optimizer.state = groups, state
                optimizer.defaults = traceable(optimizer.defaults)
            yield
        finally:
            for container, key, tensor in kept:
                container[key] = tensor
            for attributes, key, values in lists:
                attributes[key] = values
            for group, entries in held:
                group.update(entries)
            for optimizer, groups, state, defaults in optimizers:
                optimizer.param_groups, optimizer.state, optimizer.defaults = groups, state, defaults

    def replace(self, value: Any) -> Any:
        at = self.tree.index.get(id(value))
        return value if at is None else self.tensors[at]

    def _groups(self, name: str, optimizer: Optimizer) -> list[Any]:
        groups = list[Any]()  # of `Group`, which torch takes to be dictionaries
        for i, group in enumerate(optimizer.param_groups):
            entries = {**group, "params": [self.replace(p) for p in group["params"]]}
            label = f"{name}.param_groups.{i}"
            if (rate := self.tree.by_name.get(f"{label}.{RATE}")) is not None:
                entries[RATE] = self.tensors[rate]
            at = self.tree.by_name.get(f"{label}.{NUMBERS}")
            numbers = None if at is None else self.tensors[at]
            names = () if at is None else number_names(optimizer, group)
            groups.append(Group(entries, f"{name}.param_groups[{i}]", numbers, names, partial(self._note, name, i)))
        return groups

    def _note(self, optimizer: str, group: int, key: str) -> None:
        self.read.add((optimizer, group, key))

    def _state(self, optimizer: Optimizer) -> defaultdict[Any, Any]:
        state: defaultdict[Any, Any] = defaultdict(dict)
        for prefix, (owner, at) in self.tree.state_names.items():
            parameter = self.tree.tensors[at]
            if owner is optimizer and parameter in optimizer.state:
                state[self.tensors[at]] = {
                    key: self.tensors[self.tree.by_name[f"{prefix}.{key}"]] if isinstance(value, Tensor) else value
                    for key, value in optimizer.state[parameter].items()
                }
        return state


def _stand_in(tensor: Tensor, value: Tensor, role: Role) -> Tensor:
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(value, requires_grad=tensor.requires_grad)
    else:
        made = value.detach().requires_grad_() if tensor.requires_grad else value
    if role in ("parameter", "buffer"):
        _copy_attributes(tensor, made)
    for hook in (tensor._backward_hooks or {}).values():
        made.register_hook(hook)
    for hook in (getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values():
        made.register_post_accumulate_grad_hook(hook)
    return made


def _copy_attributes(tensor: Tensor, made: Tensor) -> None:
    """What users write on their parameters (`p.no_decay = True`)."""
    for key, value in vars(tensor).items():
        if not key.startswith("_") and key not in vars(made):
            setattr(made, key, value)


def _holds_leaves(value: object, tree: StateTree) -> bool:
    """A module's own list of its tensors, as recurrent layers keep one."""
    return isinstance(value, list) and any(id(x) in tree.index for x in value)
