"""One compiled program of a function, and how a call runs it: handles in, handles out, state put back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samite.api.program import Built
from samite.frontend import Capture, Leaf, StateTree
from samite.hal.engine import Future
from samite.hal.program import Argument, Result
from samite.runtime.session import Session
from samite.tensor import Remote, Tensor

__all__ = ["Step"]


class Step:
    """`capture` and `built` of one state-tree key, loaded into a session's workers on first use.

    `mode` is how the backend executes it; a program that changes the structure of the state runs once, so optimising
    it would be waste.
    """

    def __init__(self, capture: Capture, built: Built, session: Session, mode: str) -> None:
        self.capture, self.built, self.session = capture, built, session
        self.options = {"mode": "aten" if self.changes_structure else mode}
        self._handle, self._generation = -1, -1

    @property
    def changes_structure(self) -> bool:
        """Whether a call makes or removes state, as an optimizer's first step does."""
        made = any(r.kind == "state" and r.argument < 0 for r in self.capture.results)
        return made or bool(self.capture.deleted)

    def run(self, tree: StateTree, seed: int) -> Any:
        """One call. The user's parameters, gradients and optimizer state are handles afterwards; so are the outputs."""
        self._load()
        remotes: list[Remote | None] = []
        arguments: list[int | torch.Tensor] = []
        new: list[int] = []  # state arguments that become handles with this call
        for index, argument in enumerate(self.built.program.arguments):
            value = torch.tensor(seed) if argument.kind == "rng" else _current(tree, index)
            remote = value.remote if isinstance(value, Tensor) and value.is_base_on(self.session) else None
            if remote is None and argument.kind == "state":
                remote = self._adopt(value, argument)
                new.append(index)
            remotes.append(remote)
            arguments.append(value if remote is None else remote.send(argument.layout))
        for index in new:  # before anything runs: what cannot become a handle leaves all state as it was
            if tree.leaves[index].role != "input":
                self._put(tree.leaves[index], remotes[index])
        targets = [self._target(result, remotes) for result in self.built.program.results]
        step = self.session.run(self._handle, arguments, [t.number for t in targets])
        if self.changes_structure:  # what a failed step would have made or removed must not be put in place
            self.session.wait(step)
        outputs = self._take(tree, targets, set(new), step)
        for index in self.capture.deleted:
            tree.leaves[index].delete()
        for _, optimizer in tree.optimizers:
            # What a scheduler looks at to warn of a wrong order.
            optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]
        return self.capture.rebuild(outputs)

    def _load(self) -> None:
        self.session.start()
        if self._generation != self.session.generation:
            self._handle = self.session.load(self.built.program, self.options)
            self._generation = self.session.generation

    def _adopt(self, value: torch.Tensor, argument: Argument) -> Remote:
        """A state argument that lies on this host, or on another mesh, as a buffer of this one."""
        plain = value.read() if isinstance(value, Tensor) else value
        remote = Remote(self.session, self.session.number(), argument.layout, plain.dtype)
        remote.adopt(plain.detach())
        return remote

    def _target(self, result: Result, remotes: Sequence[Remote | None]) -> Remote:
        """Where a result goes: the buffer of the state that it replaces, or a new one."""
        if result.alias >= 0:
            replaced = remotes[result.alias]
            assert replaced is not None, "what a result replaces is state"
            return replaced
        return Remote(self.session, self.session.number(), result.layout, getattr(torch, result.dtype))

    def _take(self, tree: StateTree, targets: Sequence[Remote], new: set[int], step: Future) -> list[Tensor]:
        """Note what the program has written; gives its outputs."""
        outputs: list[Tensor] = []
        for spec, result, target in zip(self.capture.results, self.built.program.results, targets, strict=True):
            target.workers_written(result.layout)
            if spec.kind == "output":
                target.made_by(step)
                outputs.append(Tensor(target))
            elif spec.argument < 0:
                self._put(tree.leaf(spec.name), target)
            elif spec.argument in new:
                self._put(tree.leaves[spec.argument], target)
        return outputs

    def _put(self, leaf: Leaf, remote: Remote | None) -> None:
        current = leaf.get()
        if remote is not None and not (isinstance(current, Tensor) and current.remote is remote):
            leaf.set(Tensor(remote))


def _current(tree: StateTree, index: int) -> torch.Tensor:
    """The tensor of a leaf. What the tree remembers is current, but for what may change while the structure stays."""
    if tree.leaves[index].role not in ("gradient", "scalar"):
        return tree.tensors[index]
    value = tree.leaves[index].get()
    assert value is not None, "a tree has the leaves that are there"
    return value
