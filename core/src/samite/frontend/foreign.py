"""What a function reaches past its arguments: tensors, optimizers and helpers that a program cannot contain."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from samite.errors import CaptureError
from samite.frontend.closures import variables
from samite.frontend.source import all_user_frames, user_line
from samite.frontend.state import StateTree

__all__ = ["Foreign"]

_HARMLESS = frozenset(
    {"__get__", "size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex", "element_size"}
)
"""Names of functions that read shape and dtype alone."""
_DATA_DEPENDENT = (torch.optim.LBFGS, torch.optim.SparseAdam, torch.optim.Adafactor)


class Foreign:
    """Recognises what is not in `tree`."""

    def __init__(self, tree: StateTree) -> None:
        self._tree = tree
        self._optimizers = {id(o) for _, o in tree.optimizers}
        for name, value in variables(tree.call.fn).items():
            if isinstance(value, Optimizer) and id(value) not in self._optimizers:
                self._refuse("optimizer", name, "")

    def check(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse real tensors among the arguments of `func`."""
        values = args if not kwargs else (*args, *kwargs.values())
        for value in values:
            if isinstance(value, Tensor):
                if not _is_traced(value) and getattr(func, "__name__", "") not in _HARMLESS:
                    self._refuse_tensor(value)
            elif isinstance(value, (list, tuple)):
                for x in value:
                    if isinstance(x, Tensor) and not _is_traced(x):
                        self._refuse_tensor(x)

    def check_result(self, value: Tensor) -> None:
        if not _is_traced(value):
            self._refuse_tensor(value)

    @contextlib.contextmanager
    def optimizers(self, stepping: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Hold `stepping` while an optimizer of the tree steps; refuse all others."""
        with contextlib.ExitStack() as stack:
            steps: list[contextlib.ExitStack] = []

            def before(optimizer: Optimizer, *_: Any) -> None:
                if id(optimizer) not in self._optimizers:
                    self._refuse("optimizer", self._name_of(optimizer), user_line())
                if isinstance(optimizer, _DATA_DEPENDENT):
                    raise CaptureError(
                        f"{type(optimizer).__name__} cannot be captured: its step branches on data",
                        where=user_line(),
                        help="use another optimizer, or call its step outside of the captured function",
                    )
                steps.append(stack.enter_context(contextlib.ExitStack()))
                steps[-1].enter_context(stepping())

            def after(*_: Any) -> None:
                steps.pop().close()

            for register, hook in (
                (register_optimizer_step_pre_hook, before),
                (register_optimizer_step_post_hook, after),
            ):
                stack.callback(register(hook).remove)
            yield

    @contextlib.contextmanager
    def refused_calls(self) -> Iterator[None]:
        """Refuse what changes Python state at every step: learning-rate schedulers and gradient scalers."""
        with contextlib.ExitStack() as stack:
            for scheduler in _with_subclasses(lr_scheduler.LRScheduler):
                if "step" in vars(scheduler):
                    stack.enter_context(mock.patch.object(scheduler, "step", _refuse_scheduler))
            scale = torch.amp.GradScaler.scale
            stack.enter_context(mock.patch.object(torch.amp.GradScaler, "scale", _refuse_scaler(scale)))
            yield

    def _refuse_tensor(self, tensor: Tensor) -> NoReturn:
        self._refuse("tensor", self._name_of(tensor), user_line())

    def _refuse(self, what: str, name: str, where: str) -> NoReturn:
        called = f'{what} "{name}"' if name else f"a {what} that no variable here names"
        raise CaptureError(
            f"the function uses {called}, which is not among its arguments",
            where=where,
            help="pass it as an argument" + ("" if what == "optimizer" else ", or pass the module that holds it"),
        )

    def _name_of(self, wanted: object) -> str:
        """The variable by which the function reaches `wanted`, if it can be found."""
        scopes = [variables(self._tree.call.fn)]
        scopes += [{**f.f_globals, **f.f_locals} for f in all_user_frames(sys._getframe(1))]
        for scope in scopes:
            for name, value in list(scope.items()):
                if (path := _path_to(wanted, value)) is not None:
                    return name + path
        return ""


def _is_traced(x: Tensor) -> bool:
    while not isinstance(x, FakeTensor):
        if not is_functorch_wrapped_tensor(x):
            return False
        x = get_unwrapped(x)
    return True


def _path_to(wanted: object, value: object) -> str | None:
    """How `wanted` is reached from `value` in one step: "", ".weight", "[0]"; None if it is not."""
    if value is wanted:
        return ""
    if isinstance(value, nn.Module):
        named = [*value.named_parameters(), *value.named_buffers()]
        return next((f".{name}" for name, x in named if x is wanted), None)
    if isinstance(value, (list, tuple)):
        return next((f"[{i}]" for i, x in enumerate(value) if x is wanted), None)
    if isinstance(value, dict):
        return next((f"[{k!r}]" for k, x in value.items() if x is wanted), None)
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not inspect.ismodule(value) and not isinstance(value, type):
        return next((f".{k}" for k, x in attributes.items() if x is wanted), None)
    return None


def _with_subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _with_subclasses(inner)


def _refuse_scheduler(scheduler: object, *_: Any, **__: Any) -> NoReturn:
    raise CaptureError(
        f"{type(scheduler).__name__}.step() is called inside the step: hyper-parameters would not change again",
        where=user_line(),
        help="call it outside of the captured function; hyper-parameters are read at every call",
    )


def _refuse_scaler(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        if not scaler.is_enabled():
            return plain(scaler, outputs)
        raise CaptureError(
            "GradScaler branches on whether gradients are finite, which cannot be captured",
            where=user_line(),
            help="use torch.autocast with bfloat16, which needs no loss scaling, or GradScaler(enabled=False)",
        )

    return scale
