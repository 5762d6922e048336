"""A call as its arguments by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.utils._pytree as pytree
from torch import nn

from samite.errors import CaptureError, InputError

__all__ = ["Call", "bind", "path_name"]


@dataclass(frozen=True)
class Call:
    """`fn` and its arguments, defaults filled in.

    `names` and `values` are the leaves of the arguments; modules, optimizers and other objects are leaves. `owner` is
    the object that `fn` is, or is a method of: None for a plain function.
    """

    fn: Callable[..., Any]
    owner: object | None
    names: tuple[str, ...]
    values: tuple[Any, ...]
    _signature: inspect.Signature
    _spec: pytree.TreeSpec

    def run(self, values: Sequence[Any]) -> Any:
        """Call `fn` with `values` in place of the leaves. Raises CaptureError if it changes the containers."""
        held = pytree.tree_unflatten(values, self._spec)
        arguments = inspect.BoundArguments(self._signature, held)
        result = self.fn(*arguments.args, **arguments.kwargs)
        after, spec = pytree.tree_flatten(held)
        if spec != self._spec or any(a is not b for a, b in zip(after, values, strict=True)):
            raise CaptureError(
                "the function changes a list or dictionary among its arguments: a compiled step would not repeat that",
                help="return the new values",
            )
        return result


def bind(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Match the arguments with the parameters of `fn`. Raises InputError where Python would raise TypeError."""
    if isinstance(fn, functools.partial):
        return bind(fn.func, (*fn.args, *args), {**fn.keywords, **kwargs})
    signature = inspect.signature(fn.forward if isinstance(fn, nn.Module) else fn)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(f"{_name(fn)}: {error}", help=f"the signature is {_name(fn)}{signature}") from None
    bound.apply_defaults()
    names, values, spec = _flatten(signature, bound.arguments)
    owner = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    return Call(fn, None if inspect.ismodule(owner) else owner, names, values, signature, spec)


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _flatten(
    signature: inspect.Signature, arguments: dict[str, Any]
) -> tuple[tuple[str, ...], tuple[Any, ...], pytree.TreeSpec]:
    extra = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    leaves, spec = pytree.tree_flatten_with_path(arguments)
    names = [path_name(path[1:] if _part(path[0]) == extra else path) for path, _ in leaves]
    return tuple(names), tuple(value for _, value in leaves), spec


def path_name(path: Iterable[Any]) -> str:
    """A pytree path as a name: "batch.x", "batch.0"."""
    return ".".join(_part(key) for key in path)


def _part(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
