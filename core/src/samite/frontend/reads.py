"""What a function reads of Python's state while it is traced, wherever that lies.

A trace runs the function once, so whatever number it finds (in a global configuration, behind an attribute of an
object in a closure, in an environment variable) is compiled in. A `Watch` follows the lines of the user's code as they
run and notes each place that they look at, starting from what lives longer than the call: variables of modules and of
enclosing functions, and the arguments. The values at these places belong to the program's key; a place that the trace
has changed is put back, and told.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any
from unittest import mock

from torch import Tensor, nn
from torch.optim import Optimizer

from samite.errors import CaptureError
from samite.frontend.chains import Chain, Name, chains
from samite.frontend.drawing import Draws, clock
from samite.frontend.keys import CACHES, MODULE, has_attributes, is_constant
from samite.frontend.noting import Noted, can_be_key, copied, written
from samite.frontend.places import CODE, MISSING, MOST, Place, look
from samite.frontend.source import is_library, is_torchs, label_of
from samite.frontend.state import StateTree
from samite.frontend.watching import lines_watched

__all__ = ["Watch"]

log = logging.getLogger("samite")

_ENVIRONMENT = (os.getenv.__code__.co_filename, Mapping.get.__code__.co_filename)
"""Files of what reads variables of the environment for others."""
_CONTAINERS = (list, dict, set)
_FUNCTION = 0x1  # a flag of code that has fast locals: functions, not classes and modules


class Watch:
    """`places` are those that the function has looked at, once it is `over`."""

    def __init__(self, tree: StateTree) -> None:
        self._noted: dict[Place, Noted] = {}
        self._reached: dict[int, object] = {}  # by id: what lives longer than the call, kept alive till its end
        self._keyed = {id(module) for _, module in tree.modules}
        self._functions: dict[CodeType, FunctionType] = {}
        self._labels: dict[str, tuple[str, bool]] = {}
        self._draws, self._clocks = Draws(), dict[str, str]()
        for value in (tree.call.fn, tree.call.owner, *(m for _, m in tree.modules), *(v for _, v in tree.objects)):
            self._reach(value)

    @property
    def places(self) -> tuple[Place, ...]:
        """What a program depends on."""
        found = (noted for noted in self._noted.values() if not isinstance(noted.before, ModuleType))
        return tuple(noted.place for noted in found)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Watch what runs within; put everything back at the end. Raises CaptureError if a block that succeeded has
        changed a place, or drawn a random number of Python's."""
        reading = mock.patch.object(os._Environ, "__getitem__", self._variable(os._Environ.__getitem__))
        try:
            with reading, lines_watched(self._enter):
                yield
        except BaseException:
            self._end()
            raise
        changed, drawn = self._end()
        for line, what in self._clocks.items():
            log.warning("%s is read when the step is captured, and not again (%s)", what, line)
        if drawn:
            what, line = drawn
            raise CaptureError(
                f"{what} is drawn when the step is captured, and never again",
                where=line,
                help="use torch's random functions, or draw it outside and pass it as an argument",
            )
        if changed is not None:
            raise CaptureError(
                f'"{changed.label}" is changed inside the step: a compiled step would not repeat that',
                where=changed.line,
                help="change it outside of the captured function, or return what it is to become",
            )

    def _end(self) -> tuple[Noted | None, tuple[str, str] | None]:
        """Put everything back; the first change, and a random number that was drawn."""
        changed = [noted for noted in self._noted.values() if noted.restore()]
        self._reached.clear()
        return (changed[0] if changed else None), self._draws.end()

    # ---- following the code ------------------------------------------------------------------------

    def _enter(self, frame: FrameType) -> Callable[[FrameType], None] | None:
        code = frame.f_code
        label, library = self._label(code.co_filename)
        if not label and code.co_filename.startswith("<") and code in self._functions:
            label = code.co_filename  # typed in, or made by exec
        found = chains(code) if label and code.co_flags & _FUNCTION else None
        if not found:
            return None
        function = self._functions.get(code)
        cells = dict(zip(code.co_freevars, (function and function.__closure__) or (), strict=False))

        def line(frame: FrameType) -> None:
            if here := found.get(frame.f_lineno):
                scope = _Scope(frame, cells, f"{label}:{frame.f_lineno}", library)
                for chain in here:
                    self._follow(chain, scope)

        return line

    def _label(self, filename: str) -> tuple[str, bool]:
        """How messages write a file, "" if it is not the user's, and whether it was installed."""
        if (known := self._labels.get(filename)) is None:
            label = "" if is_torchs(filename) else label_of(filename)
            known = self._labels[filename] = label, is_library(filename)
        return known

    def _follow(self, chain: Chain, scope: _Scope) -> None:
        root, at = chain.root, None
        if root.scope == "module":
            if root.name not in scope.globals and not chain.stores:
                return  # a built-in
            value, name, at = self._step(scope.globals, root.name, True, "", scope)
        elif root.scope == "enclosing" and root.name in scope.cells:
            value, name, at = self._step(scope.cells[root.name], "cell_contents", False, root.name, scope)
        else:
            value, name = scope.value(root), root.name
        for link in chain.links:
            if id(value) not in self._reached:
                return
            if link.kind == "attribute" and isinstance(value, _CONTAINERS):  # a method: append, items
                self._look_into(value, at, scope.line)
                return
            key = scope.value(link.key) if isinstance(link.key, Name) else link.key
            value, name, at = self._step(value, key, link.kind == "entry", name, scope)
        if chain.stores and at is not None:
            self._noted[at].line = scope.line
        elif id(value) in self._reached and not chain.passed:
            self._look_into(value, at, scope.line)

    def _step(self, owner: Any, key: Any, entry: bool, name: str, scope: _Scope) -> tuple[Any, str, Place | None]:
        """What is at a place, how that is written, and the place if it is noted."""
        value = look(owner, key, entry=entry) if can_be_key(key) else CODE
        name = written(owner, key, entry, name)
        if value is CODE or isinstance(value, (Tensor, Optimizer)):
            return MISSING, name, None
        self._draws.see(value, name, scope.line)
        if not scope.library and (what := clock(value)):
            self._clocks[scope.line] = what
        self._reach(value)
        if not self._depends(owner, key, value) or (scope.library and not is_constant(value)):
            return value, name, None
        place = Place(owner, key, entry=entry)
        return (
            value,
            name,
            self._noted.setdefault(place, Noted(place, name, scope.line, value, not scope.library)).place,
        )

    def _depends(self, owner: Any, key: Any, value: Any) -> bool:
        """Whether a program depends on what is at a place of `owner`, and its key does not hold it anyway."""
        held = key in getattr(owner, "__dict__", {})
        if id(owner) in self._keyed and (held or isinstance(value, nn.Module)):
            return False
        if isinstance(owner, ModuleType):
            file = getattr(owner, "__file__", None) or ""
            return os.path.isabs(file) and bool(self._label(file)[0])
        # Of a class's functions the class tells.
        return held or isinstance(owner, (dict, CellType)) or not isinstance(value, (FunctionType, MethodType))

    def _variable(self, plain: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """How variables of the environment are read meanwhile, by whatever function of the standard library."""

        def read(environment: Any, key: Any) -> Any:
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_code.co_filename in _ENVIRONMENT:
                frame = frame.f_back
            if label := self._label(frame.f_code.co_filename)[0]:
                place, line = Place(environment, key, entry=True), f"{label}:{frame.f_lineno}"
                self._noted.setdefault(place, Noted(place, f"os.environ[{key!r}]", line, place.now(), True))
            return plain(environment, key)

        return read

    # ---- what is reached ---------------------------------------------------------------------------

    def _reach(self, value: Any) -> None:
        """From now on a variable of any function that holds `value` is followed."""
        if is_constant(value) or isinstance(value, (Tensor, Optimizer)) or id(value) in self._reached:
            return
        self._reached[id(value)] = value
        if isinstance(value, MethodType):
            self._reach(value.__self__)
            value = value.__func__
        while isinstance(value, FunctionType):
            self._functions[value.__code__] = value
            for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
                self._reach(default)
            value = getattr(value, "__wrapped__", None)
        if isinstance(value, nn.Module) and id(value) not in self._keyed:
            self._note_module(value)

    def _note_module(self, module: nn.Module) -> None:
        """A module that is no argument: what its own code reads, which is torch's perhaps and not followed."""
        for path, inner in module.named_modules():
            for key, value in vars(inner).items():
                if (key not in MODULE and key not in CACHES and not isinstance(value, Tensor)) or key == "training":
                    place = Place(inner, key, entry=False, content=isinstance(value, _CONTAINERS))
                    label = ".".join(part for part in (type(module).__name__, path, key) if part)
                    self._noted.setdefault(place, Noted(place, label, "", value, True, copied(value)))

    def _look_into(self, value: Any, at: Place | None, line: str) -> None:
        """A container, or an object of a class of the user's, that is used as a whole: what is in it matters, and is
        reached."""
        if has_attributes(value) and not isinstance(value, (*_CONTAINERS, tuple, frozenset)):
            place = Place(value, "__dict__", entry=False, content=True)
            self._noted.setdefault(place, Noted(place, "", line, vars(value), kept=False))
            return
        if not isinstance(value, (*_CONTAINERS, tuple, frozenset)) or len(value) > MOST:
            return
        if at is not None:
            noted = self._noted[at]
            noted.line = line
            if not noted.place.content:
                noted.place.content, noted.copy = True, copied(value)
        for held in value.values() if isinstance(value, dict) else value:
            self._reach(held)


class _Scope:
    """Where a line runs, and the variables there."""

    def __init__(self, frame: FrameType, cells: Mapping[str, CellType], line: str, library: bool) -> None:
        self.globals, self.cells, self.line, self.library = frame.f_globals, cells, line, library
        self._locals = frame.f_locals

    def value(self, name: Name) -> Any:
        return (self.globals if name.scope == "module" else self._locals).get(name.name, MISSING)
