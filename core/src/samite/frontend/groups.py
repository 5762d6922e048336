"""Parameter groups under capture: who reads a hyper-parameter decides what it is.

The update functions of torch.optim, which only hand their numbers on and compare them with zero, get `Number`s: these
stand for places of an argument. All other code gets the learning rate as a traced 0-d tensor, and any other entry as
the plain value that it is. That value is then part of the program, so the group takes note of the entry, whose value
belongs to the key.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from itertools import count
from types import CodeType
from typing import Any, NoReturn

from torch import Tensor
from torch.optim import SGD, Adam

from samite.errors import CaptureError
from samite.frontend.hyperparameters import BRANCHES, NOTES, RATE, loose, traceable
from samite.frontend.keys import freeze
from samite.frontend.source import user_line

__all__ = ["Group", "Number"]


class Group(MutableMapping[str, Any]):
    """One group. Setting an entry to another value raises CaptureError with the line.

    `names` are the entries that the argument `numbers` holds, in order; `note` is told of entries that are read as
    Python values and are not constants.
    """

    def __init__(
        self,
        entries: Mapping[str, Any],
        name: str,
        numbers: Tensor | None,
        names: tuple[str, ...],
        note: Callable[[str], None],
    ) -> None:
        self.numbers = numbers
        self.name, self._entries, self._note = name, traceable(entries), note
        self._noted = loose(names) - {"params", RATE}
        self._numbers: dict[str, Any] = {}
        self.non_zero = {key: bool(entries[key]) for key in BRANCHES if key in names}
        places = count()
        for key in names:
            pair = key == "betas"
            self._numbers[key] = (
                tuple(Number(self, key, next(places), part) for part in (0, 1))
                if pair
                else Number(self, key, next(places))
            )

    def __getitem__(self, key: str) -> Any:
        if key in self._numbers and sys._getframe(1).f_code in _UPDATES:
            return self._numbers[key]
        return self.plain(key)

    def plain(self, key: str) -> Any:
        """An entry as code that computes with it gets it."""
        if key in self._noted:
            self._note(key)
        return self._entries[key]

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def hidden(self) -> dict[str, Any]:
        """What the user's own group holds meanwhile in place of entries that are no constants.

        Whoever kept it, and reads it past the optimizer, would otherwise freeze them.
        """
        held: dict[str, Any] = {RATE: self._entries[RATE]} if RATE in self._entries else {}
        others = self._noted & self._entries.keys()
        return held | {key: self._numbers.get(key, Number(self, key)) for key in others}

    def __iter__(self) -> Iterator[str]:
        for key in self._noted:
            self._note(key)
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        if key in NOTES:  # others are in the key
            self._note(str(key))
        return key in self._entries

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self._entries and (self._entries[key] is value or freeze(self._entries[key]) == freeze(value)):
            return
        what = "the learning rate" if key == RATE else f'"{key}"'
        raise CaptureError(
            f"{what} of {self.name} is changed inside the step",
            where=user_line(),
            help="change it outside of the captured function, before a call: there hyper-parameters are read",
        )

    def __delitem__(self, key: str) -> NoReturn:
        raise CaptureError(
            f'"{key}" is removed from {self.name} inside the step',
            where=user_line(),
            help="remove it outside of the captured function",
        )


class Number:
    """A place `at` of a group's numbers. It can be compared with zero where that is in the key, and nothing else."""

    def __init__(self, group: Group, key: str, at: int = -1, part: int = -1) -> None:
        self.group, self.key, self.at, self._part = group, key, at, part

    @property
    def tensor(self) -> Tensor:
        """The number as a traced 0-d float64 tensor."""
        assert self.group.numbers is not None
        return self.group.numbers[self.at]

    def plain(self) -> Any:
        """The number as other code gets it."""
        value = self.group.plain(self.key)
        return value if self._part < 0 else value[self._part]

    def __bool__(self) -> bool:
        return self.group.non_zero[self.key] if self.key in self.group.non_zero else self._refuse()

    def __eq__(self, other: object) -> bool:
        return not self if other == 0 else self._refuse()

    def __hash__(self) -> int:
        return id(self)

    def _refuse(self, *_: object) -> NoReturn:
        raise CaptureError(
            f'"{self.key}" of {self.group.name} is read from a group that was not taken from the optimizer here',
            where=user_line(),
            help="in the captured function, read optimizer.param_groups",
        )

    __float__ = __int__ = __index__ = __complex__ = __format__ = __str__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __pow__ = __rpow__ = __neg__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = __round__ = _refuse


def _code(function: Callable[..., Any]) -> CodeType:
    return inspect.unwrap(function).__code__


_UPDATES = frozenset(_code(f) for kind in (SGD, Adam) for f in (kind.step, kind._init_group))
"""The code that gets `Number`s. It hands them on to `samite.frontend.updates`."""
