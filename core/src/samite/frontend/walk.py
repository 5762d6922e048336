"""Building a state tree: a walk over what the arguments of a call hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.optim import Optimizer

from samite.errors import CaptureError
from samite.frontend.calls import Call
from samite.frontend.endings import is_ending
from samite.frontend.hyperparameters import NUMBERS, RATE, number_names, rate_dtype
from samite.frontend.keys import has_attributes, recomputed
from samite.frontend.slots import ArgumentSlot, EntrySlot, GradientSlot, Leaf, NumbersSlot, RateSlot, Role, TensorSlot
from samite.frontend.state import StateTree

__all__ = ["walk"]


def walk(call: Call) -> StateTree:
    """The tree of `call`. Raises CaptureError for tensors that no program can take."""
    tree = _walk(call, "")
    if _same_name(tree) and call.owner is not None:
        tree = _walk(call, "self")
    if name := _same_name(tree):
        raise CaptureError(f'two tensors are called "{name}"', help="rename one of the arguments")
    return tree


def _walk(call: Call, root: str) -> StateTree:
    """`root` is what the names of the owner's tensors start with."""
    walker = _Walker(StateTree(call))
    if call.owner is not None:
        walker.visit(root, call.owner)
    for name, value in zip(call.names, call.values, strict=True):
        walker.visit(name, value)
    return walker.finish()


def _same_name(tree: StateTree) -> str:
    seen: set[str] = set()
    for leaf in tree.leaves:
        if leaf.name in seen:
            return leaf.name
        seen.add(leaf.name)
    return ""


class _Walker:
    """Visits arguments, then `finish`es: what depends on the whole (gradients, optimizer state) comes last."""

    def __init__(self, tree: StateTree) -> None:
        self.tree = tree
        self.roots: dict[int, str] = {}  # leaf -> the name of the argument that it came by
        self.arguments: dict[int, tuple[str, Tensor]] = {}
        self.seen: set[int] = set()

    def visit(self, name: str, value: Any, container: Any = None, key: Any = None) -> None:
        """`container[key]` is where an attribute of a user's object lives; arguments have none."""
        if isinstance(value, nn.Module):
            self.module(name, value)
        elif isinstance(value, Optimizer):
            self.tree.optimizers.append((name, value))
        elif isinstance(value, Tensor):
            _refuse(name, value)
            if container is None:
                self.arguments.setdefault(id(value), (name, value))
            else:
                self.hold(name, "parameter" if value.requires_grad else "buffer", TensorSlot(container, key), "")
        elif container is None:
            self.tree.objects.append((name, value))
            if has_attributes(value):
                for attribute, held in list(vars(value).items()):
                    self.visit(_join(name, attribute), held, vars(value), attribute)

    def module(self, root: str, module: nn.Module) -> None:
        for path, inner in module.named_modules():
            if id(inner) in self.seen:
                continue
            self.seen.add(id(inner))
            name = _join(root, path)
            self.tree.modules.append((name, inner))
            made = recomputed(inner)
            for key in made & vars(inner).keys():
                if isinstance(vars(inner)[key], Tensor):  # part of a graph, which would hold the parameters
                    vars(inner)[key] = vars(inner)[key].detach()
            tables: tuple[tuple[Role, dict[str, Any]], ...] = (
                ("parameter", inner._parameters),
                ("buffer", inner._buffers),
                ("buffer", vars(inner)),
            )
            for role, table in tables:
                for key, held in table.items():
                    if isinstance(held, Tensor) and key not in made:
                        _refuse(_join(name, key), held)
                        self.hold(_join(name, key), role, TensorSlot(table, key, inner), root)

    def hold(self, name: str, role: Role, slot: TensorSlot, root: str) -> None:
        at = id(slot.get())
        if at not in self.tree.index:
            self.own(Leaf(name, role, "", slot), slot, root)
        self.tree.places.append((slot, self.tree.index[at]))

    def own(self, leaf: Leaf, slot: TensorSlot | ArgumentSlot, root: str = "") -> None:
        """Add a leaf that has an identity: a parameter, buffer or argument."""
        tensor, at = slot.get(), len(self.tree.leaves)
        self.tree.index[id(tensor)], self.tree.slots[at], self.roots[at] = at, slot, root
        self.add(leaf, tensor)

    def add(self, leaf: Leaf, tensor: Tensor) -> None:
        self.tree.leaves.append(leaf)
        self.tree.tensors.append(tensor)

    def finish(self) -> StateTree:
        """Order: parameters and buffers, gradients, optimizer state, hyper-parameters, inputs."""
        tree, inputs = self.tree, list[tuple[Leaf, ArgumentSlot]]()
        for at, (name, tensor) in self.arguments.items():
            if at in tree.index:
                continue  # a module's own parameter, passed once more
            if isinstance(tensor, nn.Parameter):
                slot = TensorSlot([tensor], 0)
                self.own(Leaf(name, "parameter", "", slot), slot)
            else:
                slot = ArgumentSlot(tensor)
                inputs.append((Leaf(name, "input", "", slot), slot))
        for name, optimizer in tree.optimizers:
            self.parameters(name, optimizer)
        trained = [(tree.leaves[at], slot) for at, slot in tree.slots.items()] + inputs
        for leaf, slot in trained:
            tensor = slot.get()
            if tensor.requires_grad and tensor.is_leaf and (gradient := tensor.grad) is not None:
                self.add(Leaf(f"{leaf.name}.grad", "gradient", leaf.name, GradientSlot(slot)), gradient)
        for prefix, (optimizer, at) in tree.state_names.items():
            self.entries(prefix, optimizer, at)
        for name, optimizer in tree.optimizers:
            for i, group in enumerate(optimizer.param_groups):
                if RATE in group:
                    slot = RateSlot(group, rate_dtype(group))
                    self.add(Leaf(f"{name}.param_groups.{i}.{RATE}", "scalar", "", slot), slot.get())
                if names := number_names(optimizer, group):
                    slot = NumbersSlot(group, names)
                    self.add(Leaf(f"{name}.param_groups.{i}.{NUMBERS}", "scalar", "", slot), slot.get())
        for leaf, slot in inputs:
            self.own(leaf, slot)
        return tree

    def parameters(self, name: str, optimizer: Optimizer) -> None:
        """The parameters of an optimizer, by their names in it."""
        tree, parameters = self.tree, list[int]()
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                if id(parameter) not in tree.index:
                    slot = TensorSlot(group["params"], i)
                    self.own(Leaf(f"{name}.param_groups.{g}.params.{i}", "parameter", "", slot), slot, name)
                parameters.append(tree.index[id(parameter)])
        roots = {self.roots[at] for at in parameters}
        prefix = f"{roots.pop()}." if len(roots) == 1 else ""
        for at in parameters:
            tree.state_names[f"{name}.{tree.leaves[at].name.removeprefix(prefix)}"] = (optimizer, at)

    def entries(self, prefix: str, optimizer: Optimizer, at: int) -> None:
        """An optimizer's state of one parameter."""
        slot, owner = self.tree.slots[at], self.tree.leaves[at].name
        for key, value in optimizer.state.get(self.tree.tensors[at], {}).items():
            name = f"{prefix}.{key}"
            if isinstance(value, Tensor):
                self.add(Leaf(name, "optimizer", owner, EntrySlot(optimizer, slot, key)), value)
            else:
                self.tree.objects.append((name, value))


def _refuse(name: str, tensor: Tensor) -> None:
    if isinstance(tensor, UninitializedTensorMixin):
        raise CaptureError(f"{name} has no shape yet", help="call the module once before (lazy modules)")
    if tensor.layout != torch.strided:
        raise CaptureError(f"{name} is a sparse tensor", help="pass a dense one: x.to_dense()")
    if tensor.is_quantized:
        raise CaptureError(f"{name} is a quantized tensor", help="pass x.dequantize()")
    if tensor.requires_grad and not tensor.is_leaf and not is_ending(tensor):
        raise CaptureError(f"{name} is part of an autograd graph", help="pass x.detach()")


def _join(root: str, name: str) -> str:
    return f"{root}.{name}" if root and name else root or name
