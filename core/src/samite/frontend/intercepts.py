"""What the function mode of a capture does with torch's functions before they reach the dispatcher."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn
from unittest import mock

import torch
import torch.nn.functional
from torch import Tensor
from torch.overrides import TorchFunctionMode

from samite.errors import CaptureError
from samite.frontend.control_flow import ControlFlow
from samite.frontend.failures import Blamed
from samite.frontend.random_arguments import Handler
from samite.frontend.source import user_line
from samite.frontend.watching import aside

__all__ = ["FunctionMode", "data_reads", "leaf_functions", "scalar_arguments"]

_COMPILED = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.MethodWrapperType, types.WrapperDescriptorType,
)  # fmt: skip
"""Kinds of functions that run no Python of the user's."""
Forbid = Callable[[str], AbstractContextManager[None]]
Admit = Callable[[Any, tuple[Any, ...], dict[str, Any]], dict[str, Any]]


class FunctionMode(TorchFunctionMode):
    """Sends torch's functions to their handlers.

    `admit` sees the function and its arguments before, and gives the keyword arguments to go on with. With `forbid`
    control flow is traced; it holds while the functions of control flow run.
    """

    def __init__(self, handlers: Mapping[Any, Handler], admit: Admit, forbid: Forbid | None = None) -> None:
        super().__init__()
        self._handlers, self._admit = handlers, admit
        self._control = None if forbid is None else ControlFlow(self, forbid)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._control is not None and self._control.handles(func):
            self._admit(func, tuple(x for x in args if isinstance(x, Tensor)), {})
            return self._control.run(func, args)
        handler, kwargs = self._handlers.get(func), self._admit(func, args, kwargs or {})
        if func is Tensor.backward:
            return self._backward(*args, **kwargs)
        if handler is None and not isinstance(func, _COMPILED):
            return func(*args, **kwargs)
        with Blamed(func, args, kwargs):
            return aside(func, *args, **kwargs) if handler is None else aside(handler, func, args, kwargs)

    def _backward(self, tensor: Tensor, gradient: Tensor | None = None, *options: Any, **named: Any) -> None:
        """A mode is off while it handles a function, but a checkpoint's forward runs again within the backward."""
        with self:
            torch.autograd.backward(tensor, gradient, *options, **named)


@contextmanager
def leaf_functions() -> Iterator[None]:
    """Let function modes see what the Python functions of `torch.nn.functional` call, not those functions.

    A mode is off while it handles a function, so SDPA and dropout inside `multi_head_attention_forward` would pass it
    by. These functions hand themselves to the mode only if `has_torch_function` says so. So do `torch.autograd.grad`
    and `torch.nn.init`.
    """
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    with (
        mock.patch.multiple(torch.nn.functional, **dict.fromkeys(names, _never)),
        mock.patch.object(torch.autograd, "has_torch_function", _never),
        mock.patch("torch._lowrank.has_torch_function", _never),
        mock.patch.object(torch.overrides, "has_torch_function_variadic", _never),
    ):
        yield


def _never(*_: object) -> bool:
    return False


# `alpha=`, `value=` and `fill_value` take Python numbers: a tensor there is read with item(), which no trace can do.


def _scaled_sum(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    alpha = kwargs.get("alpha")
    if not isinstance(alpha, Tensor):
        return func(*args, **kwargs)
    x, other = args if len(args) == 2 else (args[0], kwargs["other"])
    return func(x, other * alpha)


def _scaled_pair(combine: Callable[[Tensor, Tensor, Tensor], Tensor], add: Callable[..., Any]) -> Handler:
    def handler(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = kwargs.get("value")
        if not isinstance(value, Tensor) or len(args) != 3:
            return func(*args, **kwargs)
        x, first, second = args
        return add(x, combine(value, first, second))

    return handler


def _filled(make_empty: Callable[..., Tensor]) -> Handler:
    def handler(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = kwargs.get("fill_value", args[-1])
        if not isinstance(value, Tensor):
            return func(*args, **kwargs)
        rest = {k: v for k, v in kwargs.items() if k != "fill_value"}
        return make_empty(*(args if "fill_value" in kwargs else args[:-1]), **rest).copy_(value)

    return handler


def scalar_arguments() -> dict[Any, Handler]:
    """Functions whose number may be a traced 0-d tensor, as the optimizers pass their learning rate."""
    handlers: dict[Any, Handler] = dict.fromkeys((torch.add, torch.sub), _scaled_sum)
    handlers |= {getattr(Tensor, n): _scaled_sum for n in ("add", "add_", "sub", "sub_")}
    for name, combine in (("addcmul", lambda v, a, b: v * a * b), ("addcdiv", lambda v, a, b: v * a / b)):
        handlers[getattr(torch, name)] = _scaled_pair(combine, torch.add)
        handlers[getattr(Tensor, name)] = _scaled_pair(combine, torch.add)
        handlers[getattr(Tensor, name + "_")] = _scaled_pair(combine, Tensor.add_)
    handlers |= {torch.full: _filled(torch.empty), torch.full_like: _filled(torch.empty_like)}
    handlers[Tensor.new_full] = _filled(Tensor.new_empty)
    return handlers


# Python that looks at a tensor's data. Constants made inside of the step have data; nothing else has.

_WAYS_OUT = {
    "__bool__": (
        "a Python branch on a tensor's data",
        "use torch.where or torch.cond, or return the condition and branch outside",
    ),
    "nonzero": ("a tensor whose shape depends on data", "use torch.where with three arguments, or a mask"),
}
_READ = "return the tensor from the function and read it outside"


def _has_data(x: object) -> bool:
    return getattr(x, "constant", None) is not None


def _refuse_read(name: str) -> NoReturn:
    what, help = _WAYS_OUT.get(name, (f"{name.strip('_')}() reads a tensor's data", _READ))
    raise CaptureError(f"{what} cannot be captured", where=user_line(), help=help)


def _read(name: str) -> Handler:
    def handler(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _has_data(args[0]):
            return func(*args, **kwargs)
        if name in ("__repr__", "__format__") and _is_torchs_message():
            return f"a {args[0].dtype} of shape {tuple(args[0].shape)}"
        return False if name == "__bool__" and _is_torchs_check() else _refuse_read(name)

    return handler


def _is_torchs_check() -> bool:
    """Whether a function of torch is looking for bad arguments: "is any of these negative?" A program does not look."""
    frame, checks = sys._getframe(), {torch.nn.functional.gaussian_nll_loss.__code__}
    while frame is not None and frame.f_code.co_filename != torch.nn.functional.__file__:
        frame = frame.f_back
    return frame is not None and frame.f_code in checks


def _is_torchs_message() -> bool:
    """Whether a function of torch is writing what is wrong with a tensor."""
    frame, torchs = sys._getframe(), os.path.dirname(torch.__file__)
    between = [code.co_filename for code in (Tensor.__format__.__code__, aside.__code__)]
    between += [__file__, torch.overrides.__file__]
    while frame is not None and frame.f_code.co_filename in between:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(torchs)


def _branch_free_nonzero(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs) if len(args) + len(kwargs) > 1 else _refuse_read("nonzero")


def _assign_data(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`p.data = x` swaps storage behind the trace's back; a copy is the same to everyone else."""
    x, value = args
    if x.shape != value.shape or x.dtype != value.dtype:
        raise CaptureError(
            f"`.data` is set to a tensor of another shape or dtype ({tuple(x.shape)} {x.dtype} to "
            f"{tuple(value.shape)} {value.dtype})",
            where=user_line(),
            help="do that outside of the captured function",
        )
    with torch.no_grad():
        x.copy_(value)


def data_reads() -> dict[Any, Handler]:
    """Functions that read data, each with its refusal; and `.data = x`."""
    names = (
        "item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__complex__",
        "__repr__", "__format__", "nonzero", "data_ptr",
    )  # fmt: skip
    handlers: dict[Any, Handler] = {getattr(Tensor, name): _read(name) for name in names}
    handlers |= {f: _read("nonzero") for f in (torch.nonzero, torch.masked_select, Tensor.masked_select)}
    handlers[torch.where] = _branch_free_nonzero
    setter: types.MethodWrapperType = Tensor.data.__set__  # type: ignore[attr-defined]
    handlers[setter] = _assign_data
    return handlers
