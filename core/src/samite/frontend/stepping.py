"""The function that is traced: the user's, on stand-ins, with all that it leaves behind as results."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from samite.errors import CaptureError
from samite.frontend import attention, devices, equivalents, foreach
from samite.frontend.calls import path_name
from samite.frontend.constraining import constraints_kept
from samite.frontend.control_flow import called_directly
from samite.frontend.foreign import Foreign
from samite.frontend.hyperparameters import Entry
from samite.frontend.intercepts import FunctionMode, data_reads, leaf_functions, scalar_arguments
from samite.frontend.outcomes import TENSOR, Outcome
from samite.frontend.places import Place
from samite.frontend.python_state import PythonState
from samite.frontend.random_ops import RandomOps
from samite.frontend.reads import Watch
from samite.frontend.source import Recorder
from samite.frontend.standins import StandIns
from samite.frontend.state import StateTree
from samite.frontend.updates import fused_updates

__all__ = ["Step"]


@dataclass
class Step:
    """Called with a value for each leaf of `tree`, then the seed; gives one tensor for each of `outcomes`.

    `spec` and `constants` give the user's return value back: a constant for each of its leaves, or `TENSOR`.
    `deleted` are leaves that are absent afterwards, `read` the hyper-parameters that were read as Python values, and
    `places` where else Python values were read.
    """

    tree: StateTree
    recorder: Recorder = field(default_factory=Recorder)
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    constants: list[Any] = field(default_factory=list[Any])
    deleted: list[int] = field(default_factory=list[int])
    read: set[Entry] = field(default_factory=set[Entry])
    places: tuple[Place, ...] = ()
    spec: pytree.TreeSpec | None = None

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        *values, seed = arguments
        standins = StandIns.of(self.tree, values)
        self.read = standins.read
        with PythonState(self._watched()).kept(), standins.installed():
            foreign = Foreign(self.tree)
            watch = Watch(self.tree)
            with self._modes(seed, foreign), watch.kept():
                returned = self.tree.call.run([standins.replace(v) for v in self.tree.call.values])
            self.places = watch.places
            results = [*self._outputs(returned), *self._leaves(standins), *self._created(standins)]
            for result in results:
                foreign.check_result(result)
            return tuple(results)

    def _watched(self) -> Iterator[tuple[str, object]]:
        """The objects whose Python state a trace must leave as it is."""
        yield from self.tree.modules
        yield from self.tree.optimizers
        yield from self.tree.objects

    @contextlib.contextmanager
    def _modes(self, seed: Tensor, foreign: Foreign) -> Iterator[None]:
        random = RandomOps(seed)
        handlers = random.handlers | attention.handlers(random) | foreach.handlers() | devices.handlers()
        handlers |= scalar_arguments() | data_reads() | equivalents.handlers()

        def admit(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
            foreign.check(func, args, kwargs)
            return devices.without_device(kwargs)

        with (
            mock.patch.object(torch.distributions.Distribution, "_validate_args", False),  # it looks at data
            devices.one_device(),
            constraints_kept(),
            _inlined(),
            leaf_functions(),
            random.rng_state(),
            foreign.refused_calls(),
            foreign.optimizers(self._optimizing),
            called_directly(),
            FunctionMode(handlers, admit, random.forbidden),
        ):
            yield

    @contextlib.contextmanager
    def _optimizing(self) -> Iterator[None]:
        """While an optimizer steps, its ops are the update, and it takes the branches that read no data."""
        compiling = mock.patch.object(torch.compiler, "_is_compiling_flag", True)
        with compiling, fused_updates(), mock.patch.object(self.recorder, "updating", True):
            yield

    def _outputs(self, returned: Any) -> Iterator[Tensor]:
        leaves, self.spec = pytree.tree_flatten_with_path(returned)
        for path, leaf in leaves:
            if isinstance(leaf, Tensor):
                self.constants.append(TENSOR)
                name = path_name(("output", *path))
                self.outcomes.append(Outcome(name, "output", traced=leaf.requires_grad))
                yield leaf
            else:
                self.constants.append(leaf)

    def _leaves(self, standins: StandIns) -> Iterator[Tensor]:
        """What each leaf is afterwards."""
        held = {at: slot for slot, at in reversed(self.tree.places)}
        for at, (leaf, tensor) in enumerate(zip(self.tree.leaves, standins.tensors, strict=True)):
            value: Tensor | None = tensor
            if leaf.role == "gradient":
                value = standins.tensors[self.tree.by_name[leaf.owner]].grad
            elif leaf.role == "optimizer":
                value = self._entries(leaf.name.rpartition(".")[0], standins).get(leaf.name.rpartition(".")[2])
            elif at in held:
                value = held[at].get()
                if leaf.role == "parameter" and value is not tensor:
                    what = f"parameter {leaf.name} is replaced inside the step"
                    raise CaptureError(what, help="copy into it instead")
            if value is not None and value is tensor and value.shape != standins.shapes[at]:
                shapes = f"{tuple(standins.shapes[at])} to {tuple(value.shape)}"
                raise CaptureError(f"{leaf.name} changes its shape in place, {shapes}", help="return a new tensor")
            if value is None:
                self.deleted.append(at)
            else:
                self.outcomes.append(Outcome(leaf.name, "state", at, leaf.owner))
                yield value

    def _created(self, standins: StandIns) -> Iterator[Tensor]:
        """Gradients and optimizer state that were absent before."""
        known = self.tree.by_name
        for leaf, tensor in zip(self.tree.leaves, standins.tensors, strict=True):
            name = f"{leaf.name}.grad"
            if leaf.role in ("parameter", "input") and name not in known and tensor.grad is not None:
                if not self.tree.tensors[self.tree.by_name[leaf.name]].is_leaf:
                    raise CaptureError(
                        f"the backward pass reaches {leaf.name}, which another compiled function made, and ends there",
                        help=f"compile both as one function, or pass {leaf.name}.detach()",
                    )
                self.outcomes.append(Outcome(name, "state", -1, leaf.name))
                yield tensor.grad
        for prefix, (_, at) in self.tree.state_names.items():
            for key, value in self._entries(prefix, standins).items():
                name = f"{prefix}.{key}"
                if isinstance(value, Tensor) and name not in known:
                    self.outcomes.append(Outcome(name, "state", -1, self.tree.leaves[at].name))
                    yield value
                elif not isinstance(value, Tensor):
                    self._check_constant(name, value)

    def _entries(self, prefix: str, standins: StandIns) -> dict[str, Any]:
        optimizer, at = self.tree.state_names[prefix]
        return optimizer.state.get(standins.tensors[at], {})

    def _check_constant(self, name: str, value: object) -> None:
        before = dict(self.tree.objects).get(name, TENSOR)
        if before is not value and before != value:
            raise CaptureError(
                f"optimizer state {name} is a Python value that the step changes",
                help="the optimizer must keep it in a tensor, as torch.optim's do",
            )


@contextlib.contextmanager
def _inlined() -> Iterator[None]:
    """What torch.compile has compiled is traced through, as if it were not."""
    if "torch._dynamo" not in sys.modules:  # then there is nothing of the kind
        yield
        return
    with sys.modules["torch._dynamo"].config.patch(error_on_nested_fx_trace=False):
        yield
