"""One compiled program of a function, and how a call runs it: handles in, handles out, state put back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from samite.api.program import Built
from samite.errors import InputError
from samite.frontend import Capture, StateTree
from samite.runtime.session import Session
from samite.tensor import Remote, Tensor

__all__ = ["Step"]


class Step:
    """`capture` and `built` of one state-tree key, loaded into a session's workers on first use."""

    def __init__(self, capture: Capture, built: Built, session: Session, options: dict[str, Any]) -> None:
        self.capture, self.built, self.session, self.options = capture, built, session, options
        self._handle, self._generation = -1, -1

    def run(self, tree: StateTree, seed: int) -> Any:
        """One call. The user's parameters, gradients and optimizer state are handles afterwards; so are the outputs."""
        self._load()
        program = self.built.program
        remotes: list[Remote | None] = []
        arguments: list[int | torch.Tensor] = []
        for index, argument in enumerate(program.arguments):
            if argument.kind == "rng":
                value: Any = torch.tensor(seed, dtype=torch.int64)
            else:
                value = tree.leaves[index].get()
            remote = self._remote(value, argument.kind, argument.layout)
            remotes.append(remote)
            arguments.append(remote.send(argument.layout) if remote is not None else value)
        targets = [
            remotes[r.alias] if r.alias >= 0 else Remote(self.session, self.session.number(), r.layout, _dtype(r.dtype))
            for r in program.results
        ]
        numbers = [t.number for t in targets if t is not None]
        self.session.run(self._handle, arguments, numbers)
        outputs: list[Tensor] = []
        for spec, result, target in zip(self.capture.results, program.results, targets, strict=True):
            assert target is not None
            if result.alias >= 0:
                target.workers_written(result.layout)
            if spec.kind == "output":
                outputs.append(Tensor(target))
            else:
                self._put(tree, spec.argument, spec.name, target)
        for index in self.capture.deleted:
            tree.leaves[index].delete()
        for _, optimizer in tree.optimizers:
            optimizer._opt_called = True  # what a scheduler looks at to warn of a wrong order
        self._keep_arguments(tree, remotes)
        return self.capture.rebuild(outputs)

    def _load(self) -> None:
        workers = self.session.workers
        if self._generation != self.session.generation:
            self._handle = workers.load(self.built.program, self.options)
            self._generation = self.session.generation

    def _remote(self, value: torch.Tensor, kind: str, layout: Any) -> Remote | None:
        """The remote of a state argument, or of a handle that is passed in; None for values that are sent along."""
        if isinstance(value, Tensor) and value._view is None and value.remote.session is self.session:
            return value.remote
        if isinstance(value, Tensor):
            value = value.read()
        if kind != "state":
            return None
        if value.device.type != "cpu":
            raise InputError(f"state on {value.device}", help="move the model: model.cpu()")
        remote = Remote(self.session, self.session.number(), layout, value.dtype)
        remote.adopt(value.detach())
        return remote

    def _put(self, tree: StateTree, argument: int, name: str, target: Remote) -> None:
        leaf = tree.leaves[argument] if argument >= 0 else tree.leaf(name)
        current = leaf.get() if argument >= 0 else None
        if not (isinstance(current, Tensor) and current.remote is target):
            leaf.set(Tensor(target))

    def _keep_arguments(self, tree: StateTree, remotes: Sequence[Remote | None]) -> None:
        """State that the program only reads becomes a handle too, or every call would send it again."""
        for index, remote in enumerate(remotes):
            if remote is not None and self.built.program.arguments[index].kind == "state":
                leaf = tree.leaves[index]
                current = leaf.get()
                if current is not None and not isinstance(current, Tensor) and leaf.role != "input":
                    leaf.set(Tensor(remote))


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)
