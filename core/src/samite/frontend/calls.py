"""A call as its arguments by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.utils._pytree as pytree
from torch import nn

from samite.errors import CaptureError, InputError

__all__ = ["Call", "bind", "bind_as", "path_name"]


@dataclass(frozen=True)
class Call:
    """`fn` and its arguments, defaults filled in.

    `names` and `values` are the leaves of the arguments, `spec` their structure; modules, optimizers and other objects
    are leaves. `owner` is the object that `fn` is, or is a method of: None for a plain function. `given` is what the
    user gave as the function: `fn`, or a partial of it.
    """

    given: Callable[..., Any]
    fn: Callable[..., Any]
    owner: object | None
    signature: inspect.Signature
    names: tuple[str, ...]
    values: tuple[Any, ...]
    spec: pytree.TreeSpec

    def run(self, values: Sequence[Any]) -> Any:
        """Call `fn` with `values` in place of the leaves. Raises CaptureError if it changes the containers."""
        held = pytree.tree_unflatten(values, self.spec)
        arguments = inspect.BoundArguments(self.signature, held)
        result = self.fn(*arguments.args, **arguments.kwargs)
        after, spec = pytree.tree_flatten(held)
        if spec != self.spec or any(a is not b for a, b in zip(after, values, strict=True)):
            raise CaptureError(
                "the function changes a list or dictionary among its arguments: a compiled step would not repeat that",
                help="return the new values",
            )
        return result


def bind(given: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Match the arguments with the parameters of `given`. Raises InputError where Python would raise TypeError."""
    fn, args, kwargs = _unwrap(given, args, kwargs)
    signature = inspect.signature(fn.forward if isinstance(fn, nn.Module) else fn)
    try:
        arguments = _bind(signature, args, kwargs)
    except TypeError as error:
        raise InputError(f"{_name(fn)}: {error}", help=f"the signature is {_name(fn)}{signature}") from None
    extra = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    leaves, spec = pytree.tree_flatten_with_path(arguments)
    names = tuple(path_name(path[1:] if _part(path[0]) == extra else path) for path, _ in leaves)
    owner = fn if isinstance(fn, nn.Module) else getattr(fn, "__self__", None)
    owner = None if inspect.ismodule(owner) else owner
    return Call(given, fn, owner, signature, names, tuple(value for _, value in leaves), spec)


def bind_as(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    """`bind` for the function of `call`, if the arguments have the structure of its arguments."""
    _, args, kwargs = _unwrap(call.given, args, kwargs)
    try:
        arguments = _bind(call.signature, args, kwargs)
    except TypeError:
        return None
    values, spec = pytree.tree_flatten(arguments)
    return replace(call, values=tuple(values)) if spec == call.spec else None


def _unwrap(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    while isinstance(fn, functools.partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return fn, args, kwargs


def _bind(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def path_name(path: Iterable[Any]) -> str:
    """A pytree path as a name: "batch.x", "batch.0"."""
    return ".".join(_part(key) for key in path)


def _part(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
