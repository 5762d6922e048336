"""Places where Python keeps values: attributes of objects and entries of containers, looked at without running code."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Hashable
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from torch import nn

from samite.frontend.keys import Identity, freeze, is_constant

__all__ = ["CODE", "MISSING", "MOST", "Place", "look"]

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()
"""What is at a place that is empty."""
CODE: Any = type("Code", (), {"__repr__": lambda self: "what code says"})()
"""What is at a place of which only code knows the value."""

MOST = 4096
"""Entries of a container above which it is told from others by identity and length alone."""


class Place:
    """An attribute (or entry) `key` of `owner`, which is not kept alive if it can be helped.

    With `content` what is in a container there matters, not only which container it is.
    """

    __slots__ = ("_id", "_owner", "content", "entry", "key")

    def __init__(self, owner: object, key: Hashable, *, entry: bool, content: bool = False) -> None:
        self.key, self.entry, self.content, self._id = key, entry, content, id(owner)
        try:
            self._owner: Callable[[], Any] = weakref.ref(owner)
        except TypeError:
            self._owner = lambda: owner

    def now(self) -> Any:
        """The value there; MISSING if there is none, or the owner is gone."""
        owner = self._owner()
        try:
            if isinstance(owner, dict) and self.entry:
                return dict.get(owner, self.key, MISSING)  # type: ignore[arg-type]  # a defaultdict makes none
            return owner[self.key] if self.entry else getattr(owner, self.key)  # pyright: ignore
        except (AttributeError, LookupError, TypeError, ValueError):  # ValueError: of an empty cell
            return MISSING

    def picture(self) -> Hashable:
        """What is there, for a key."""
        value = self.now()
        if is_constant(value):
            return freeze(value)
        if not self.content or not isinstance(value, (list, tuple, dict, set, frozenset)):
            return Identity(value)
        return freeze(value) if len(value) <= MOST else (Identity(value), len(value))

    def put(self, value: Any) -> None:
        """Put a value back; with MISSING make the place empty."""
        owner = self._owner()
        if value is MISSING:
            owner.__delitem__(self.key) if self.entry else delattr(owner, self.key)  # type: ignore[arg-type]
        elif self.entry:
            owner[self.key] = value
        else:
            setattr(owner, self.key, value)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and (self._id, self.key, self.entry) == (other._id, other.key, other.entry)

    def __hash__(self) -> int:
        return hash((self._id, self.key, self.entry))


def look(owner: Any, key: Any, *, entry: bool) -> Any:
    """The value at a place; MISSING if there is none, CODE if only code could tell: a property, `__getattr__`, a
    container of a class's own. Functions of a class are values too."""
    if entry:
        return _entry(owner, key)
    if not isinstance(key, str):
        return CODE
    if isinstance(owner, CellType):
        return Place(owner, "cell_contents", entry=False).now()
    if isinstance(owner, ModuleType):
        lazy = "__getattr__" in vars(owner) or hasattr(type(owner), "__getattr__")
        return vars(owner).get(key, CODE if lazy else MISSING)
    if isinstance(owner, nn.Module) and key in owner._modules:
        return owner._modules[key]
    value = inspect.getattr_static(owner, key, MISSING)
    if isinstance(value, MemberDescriptorType):  # of __slots__
        return getattr(owner, key, MISSING)
    if key == "__dict__" and isinstance(value, GetSetDescriptorType):
        return vars(owner)
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if value is MISSING:
        return CODE if hasattr(type(owner), "__getattr__") else MISSING
    return value if isinstance(value, (FunctionType, MethodType)) or not hasattr(type(value), "__get__") else CODE


def _entry(owner: Any, key: Any) -> Any:
    try:
        if isinstance(owner, dict):
            return dict.get(owner, key, MISSING)  # type: ignore[arg-type]  # a defaultdict makes none
        if isinstance(owner, (list, tuple)):
            return owner[key]
    except (LookupError, TypeError):
        return MISSING
    return CODE
