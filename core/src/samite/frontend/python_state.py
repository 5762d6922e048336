"""Python state of the user's objects, kept over a trace: what the function changed is put back, and told.

A trace runs the function's Python once, and a compiled step never again: a counter that it raises, a list that it
appends to, would stand still. So each such change is an error, after everything is as it was before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from torch import nn

from samite.errors import CaptureError
from samite.frontend.keys import CACHES, recomputed
from samite.frontend.source import user_line

__all__ = ["PythonState", "same_content", "same_number"]

_TORCH_OWN = frozenset({"_parameters", "_buffers", "_modules", "_opt_called", "_step_count", "param_groups", "state"})
_CONTAINERS = (list, dict, set)


@dataclass
class _Saved:
    """One dictionary of attributes, and a copy of each container in it."""

    name: str
    owner: object
    attributes: dict[str, Any]
    before: dict[str, Any]
    contents: dict[str, Any]


@dataclass
class PythonState:
    """Attributes of `objects`, pairs of a name and an object; containers are kept one level deep."""

    objects: Iterable[tuple[str, object]]
    _saved: list[_Saved] = field(default_factory=list[_Saved])
    _lines: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put everything back at the end. Raises CaptureError if a block that succeeded changed anything."""
        for name, value in self.objects:
            self._save(name, value)
        try:
            with self._noting_lines():
                yield
        except BaseException:
            self._restore()
            raise
        if changes := self._restore():
            name, line = changes[0]
            raise CaptureError(
                f'"{name}" is changed inside the step: a compiled step would not repeat that',
                where=line,
                help="change it outside of the captured function, or keep it in a buffer (register_buffer)",
            )

    def _save(self, name: str, value: object) -> None:
        if isinstance(value, _CONTAINERS):
            attributes: dict[str, Any] = {name: value}
            self._saved.append(_Saved("", value, attributes, dict(attributes), {name: value.copy()}))
        elif hasattr(value, "__dict__"):
            attributes = vars(value)
            before = {k: v for k, v in attributes.items() if k not in _TORCH_OWN}
            contents = {k: v.copy() for k, v in before.items() if isinstance(v, _CONTAINERS)}
            self._saved.append(_Saved(name, value, attributes, before, contents))

    @contextmanager
    def _noting_lines(self) -> Iterator[None]:
        plain = nn.Module.__setattr__

        def setattr_(module: nn.Module, name: str, value: Any) -> None:
            self._lines[id(module), name] = user_line()
            plain(module, name, value)

        with mock.patch.object(nn.Module, "__setattr__", setattr_):
            yield

    def _restore(self) -> list[tuple[str, str]]:
        """Put everything back; gives name and line of each change."""
        changes: list[tuple[str, str]] = []
        for saved in self._saved:
            now = {k: v for k, v in saved.attributes.items() if k not in _TORCH_OWN}
            for key in {**saved.before, **now}:
                if self._restore_one(saved, key):
                    name = f"{saved.name}.{key}" if saved.name else key
                    changes.append((name, self._lines.get((id(saved.owner), key), "")))
        return changes

    def _restore_one(self, saved: _Saved, key: str) -> bool:
        if key not in saved.before:
            del saved.attributes[key]
            return True
        before, now = saved.before[key], saved.attributes.get(key, _MISSING)
        saved.attributes[key] = before
        changed = before is not now and not same_number(before, now)
        if key in saved.contents:
            content = saved.contents[key]
            if not same_content(before, content):
                before.clear()
                before.extend(content) if isinstance(before, list) else before.update(content)
                changed = True
        own = isinstance(saved.owner, nn.Module) and key in recomputed(saved.owner)
        return changed and key not in CACHES and not own


_MISSING = object()


def same_number(a: object, b: object) -> bool:
    """Whether two values are one number or string, though perhaps two objects."""
    return type(a) is type(b) and isinstance(a, (bool, int, float, str)) and a == b


def same_content(a: Any, b: Any) -> bool:
    """Whether two containers of a kind hold the same."""
    if len(a) != len(b):
        return False
    if isinstance(a, list):
        return all(x is y or same_number(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return all(k in b and (v is b[k] or same_number(v, b[k])) for k, v in a.items())
    return a == b
