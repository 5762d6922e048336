"""One compiled program of a function, and how a call runs it: handles in, handles out, state put back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import torch

from samite.api.held import Held
from samite.api.program import Built
from samite.frontend import Capture, Leaf, ResultSpec, StateTree
from samite.frontend.endings import ending
from samite.frontend.seeds import seed_tensor
from samite.hal.engine import Future
from samite.hal.program import Argument, Result
from samite.runtime.session import Session
from samite.tensor import Remote, Tensor

__all__ = ["Step"]


class Step:
    """`capture` and `built` of one state-tree key, loaded into a session's workers on first use.

    `mode` is how the backend executes it; a program that changes the structure of the state runs once, so optimising
    it would be waste. Then `later` tells the backend what it will be asked for next.
    """

    def __init__(self, capture: Capture, built: Built, session: Session, mode: str) -> None:
        self.capture, self.built, self.session = capture, built, session
        self.options = {"mode": "aten", "later": mode} if self.changes_structure else {"mode": mode}
        self._handle, self._generation = -1, -1
        arguments = built.program.arguments
        self._state = [at for at, argument in enumerate(arguments) if argument.kind == "state"]
        self._others = [at for at, argument in enumerate(arguments) if argument.kind != "state"]
        place = {at: index for index, at in enumerate(self._state)}
        self._replaced = [place.get(result.alias, -1) for result in built.program.results]  # of the state, or -1

    @cached_property
    def changes_structure(self) -> bool:
        """Whether a call makes or removes state, as an optimizer's first step does."""
        made = any(r.kind == "state" and r.argument < 0 for r in self.capture.results)
        return made or bool(self.capture.deleted)

    def run(self, tree: StateTree, seed: int) -> Any:
        """One call. The user's parameters, gradients and optimizer state are handles afterwards; so are the outputs."""
        self._load()
        values = _current(tree)
        state = [values[at] for at in self._state]
        held, new = tree.found.get(self), set[int]()
        if held is None or not held.still(state, self._generation):
            remotes, new = self._send(tree, state)
            held = Held.of(state, remotes, self._generation)
            tree.found[self] = held
        arguments: list[Any] = [*values, seed_tensor(seed)][: len(self.built.program.arguments)]
        for at, remote in zip(self._state, held.remotes, strict=True):
            arguments[at] = remote.number
        for at in self._others:
            if (remote := self._remote(arguments[at])) is not None:
                arguments[at] = remote.send(self.built.program.arguments[at].layout)
        for at in new:  # before anything runs: what cannot become a handle leaves all state as it was
            if tree.leaves[self._state[at]].role != "input":
                self._put(tree.leaves[self._state[at]], held.remotes[at])
                # To make it a parameter is an op, which on ranks of a launcher lays out anew what only some hold.
                held.remotes[at].send(self.built.program.arguments[self._state[at]].layout)
        results = zip(self._replaced, self.built.program.results, strict=True)
        targets = [held.remotes[at] if at >= 0 else self._new(result) for at, result in results]
        step = self.session.run(self._handle, arguments, [target.number for target in targets])
        if self.changes_structure:  # what a failed step would have made or removed must not be put in place
            self.session.wait(step)
        outputs = self._take(tree, targets, new, step)
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

    def _send(self, tree: StateTree, state: Sequence[torch.Tensor]) -> tuple[list[Remote], set[int]]:
        """The buffers of the state, current on the workers, and which of them the user's tensors do not know yet."""
        remotes: list[Remote] = []
        new: set[int] = set()
        for index, (at, value) in enumerate(zip(self._state, state, strict=True)):
            argument = self.built.program.arguments[at]
            remote = self._remote(value)
            if remote is None:
                remote = self._adopt(value, argument)
                new.add(index)
            remote.send(argument.layout)
            remotes.append(remote)
        return remotes, new

    def _remote(self, value: object) -> Remote | None:
        """The buffer of this session that a tensor is, if it is one."""
        return value.remote if isinstance(value, Tensor) and value.is_base_on(self.session) else None

    def _adopt(self, value: torch.Tensor, argument: Argument) -> Remote:
        """A state argument that lies on this host, or on another mesh, as a buffer of this one."""
        plain = value.read() if isinstance(value, Tensor) else value
        remote = Remote(self.session, self.session.number(), argument.layout, plain.dtype)
        remote.adopt(plain.detach())
        return remote

    def _new(self, result: Result) -> Remote:
        return Remote(self.session, self.session.number(), result.layout, getattr(torch, result.dtype))

    def _take(self, tree: StateTree, targets: Sequence[Remote], new: set[int], step: Future) -> list[Tensor]:
        """Note what the program has written; gives its outputs."""
        outputs: list[Tensor] = []
        columns = zip(self.capture.results, self.built.program.results, self._replaced, targets, strict=True)
        for spec, result, at, target in columns:
            target.workers_written(result.layout)
            if at >= 0:
                if at in new:
                    self._put(tree.leaves[spec.argument], target)
            elif spec.kind == "output":
                target.made_by(step)
                outputs.append(self._output(target, spec))
            else:
                self._put(tree.leaf(spec.name), target)
        return outputs

    def _output(self, remote: Remote, spec: ResultSpec) -> Tensor:
        """The handle of an output: as much part of an autograd graph as if the function were not compiled."""
        if not spec.traced:
            return Tensor(remote)
        return cast(Tensor, ending(lambda: Tensor(remote), spec.name, self.built.program.name))

    def _put(self, leaf: Leaf, remote: Remote | None) -> None:
        current = leaf.get()
        if remote is not None and not (isinstance(current, Tensor) and current.remote is remote):
            leaf.set(Tensor(remote))


def _current(tree: StateTree) -> list[torch.Tensor]:
    """The tensor of each leaf. The tree knows those that change only when it does."""
    values = tree.tensors.copy()
    for at, leaf in enumerate(tree.leaves):
        if leaf.role == "gradient" or leaf.role == "scalar":
            value = leaf.get()
            assert value is not None, "a tree has the leaves that are there"
            values[at] = value
    return values
