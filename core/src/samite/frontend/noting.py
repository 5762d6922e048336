"""What was at a place when a trace came there first, to be put back when it is over."""

from __future__ import annotations

from dataclasses import dataclass
from types import CellType
from typing import Any

from torch import Tensor

from samite.frontend.places import Place
from samite.frontend.python_state import same_content, same_number

__all__ = ["Noted", "can_be_key", "copied", "written"]


@dataclass
class Noted:
    """A place, how the code writes it, what was there first, and a copy of it if it is a container that matters.

    `kept`: installed libraries may change their own state, as when they fill a cache.
    """

    place: Place
    label: str
    line: str
    before: Any
    kept: bool
    copy: Any = None

    def restore(self) -> bool:
        """Put back what was there; whether it had changed."""
        if not self.kept:
            return False
        now = self.place.now()
        changed = now is not self.before and not same_number(now, self.before)
        if changed:
            self.place.put(self.before)
        if self.copy is not None and not same_content(self.before, self.copy):
            self.before.clear()
            self.before.extend(self.copy) if isinstance(self.copy, list) else self.before.update(self.copy)
            changed = True
        return changed


def copied(value: Any) -> Any:
    """A copy of a container that can change; None of anything else."""
    return value.copy() if isinstance(value, (list, dict, set)) else None


def written(owner: Any, key: Any, entry: bool, name: str) -> str:
    """How code writes a place of `owner`, which it writes as `name`: "" for the variables of a module."""
    if isinstance(owner, CellType):
        return name
    if not name:
        return str(key)
    return f"{name}[{key!r}]" if entry else f"{name}.{key}"


def can_be_key(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return not isinstance(key, Tensor)
