"""The chains of names, attributes and entries that a piece of code reads or stores: `CONFIG["model"].width`.

They are found in its bytecode, by line, without running it. A key may be a constant or a variable.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal

__all__ = ["Chain", "Link", "Name", "chains"]


@dataclass(frozen=True, slots=True)
class Name:
    """A variable: of the module, of an enclosing function, or of the function itself."""

    scope: Literal["module", "enclosing", "local"]
    name: str


@dataclass(frozen=True, slots=True)
class Link:
    """`.key`, or `[key]` of a container. `key` is a constant, or the `Name` of a variable that holds it."""

    kind: Literal["attribute", "entry"]
    key: Any


@dataclass(frozen=True, slots=True)
class Chain:
    """`root` and what is taken of it, one after the other; the last is written to if `stores`. With `passed` it is only
    handed to a function that is made here, or to `super`."""

    root: Name
    links: tuple[Link, ...]
    stores: bool = False
    passed: bool = False


@functools.lru_cache(maxsize=1024)
def chains(code: CodeType) -> Mapping[int, Sequence[Chain]]:
    """line -> the chains that begin there."""
    found: dict[int, list[Chain]] = {}
    code_of = [i for i in dis.get_instructions(code) if i.opname not in _BESIDE]
    for at, instruction in enumerate(code_of):
        line = instruction.positions.lineno if instruction.positions else None
        if line is not None and (chain := _chain(code, code_of, at)) is not None:
            found.setdefault(line, []).append(chain)
    return found


_BESIDE = frozenset({"CACHE", "COPY", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME"})
"""What stands between a value and what is taken of it: `x.n += 1` is LOAD x, COPY, LOAD_ATTR n."""
_SCOPES = {
    "LOAD_GLOBAL": "module",
    "LOAD_FAST": "local",
    "LOAD_FAST_CHECK": "local",
    "LOAD_DEREF": "enclosing",
    "LOAD_CLOSURE": "enclosing",  # for a function that is made here
}
_STORES = {"STORE_GLOBAL": "module", "DELETE_GLOBAL": "module", "STORE_DEREF": "enclosing"}
_BY_NAME = (["getattr"], ["hasattr"])
"""Functions that take an attribute whose name is their second argument."""


def _chain(code: CodeType, instructions: Sequence[dis.Instruction], at: int) -> Chain | None:
    instruction = instructions[at]
    if (stored := _name(code, instruction, _STORES)) is not None:
        return None if stored.scope == "local" else Chain(stored, (), stores=True)
    root = _name(code, instruction, _SCOPES)
    if root is None:
        return None
    before = [i.argval for i in instructions[max(at - 2, 0) : at] if i.opname in ("LOAD_GLOBAL", "LOAD_DEREF")]
    links = list(_links(code, instructions, at + 1, before[-1:] in _BY_NAME))
    if before[-1:] == ["vars"]:
        links.append(Link("attribute", "__dict__"))
    stores = bool(links) and links[-1] is _STORED
    passed = instruction.opname == "LOAD_CLOSURE" or before == ["super", "__class__"]
    return Chain(root, tuple(links[:-1] if stores else links), stores, passed)


_STORED = Link("attribute", None)


def _links(code: CodeType, instructions: Sequence[dis.Instruction], at: int, by_name: bool) -> Iterator[Link]:
    """What is taken of the value before instruction `at`; `_STORED` at the end if something is put there."""
    padded = [*instructions[at : at + 32], None, None]
    while (first := padded.pop(0)) is not None and padded[0] is not None:
        second = padded[0]
        if first.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if first.argval == "get" and (key := _key(code, second)) is not None:
                yield Link("entry", key)
                return
            yield Link("attribute", first.argval)
        elif first.opname in ("STORE_ATTR", "DELETE_ATTR"):
            yield Link("attribute", first.argval)
            yield _STORED
            return
        elif (key := _key(code, first)) is not None and second.opname == "BINARY_SUBSCR":
            yield Link("entry", key)
            padded.pop(0)
        elif key is not None and second.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            yield Link("entry", key)
            yield _STORED
            return
        else:
            if key is not None and by_name:
                yield Link("attribute", key)
            return


def _key(code: CodeType, instruction: dis.Instruction) -> Any:
    """The constant or variable that an instruction loads; None if it does something else."""
    if instruction.opname == "LOAD_CONST":
        return instruction.argval
    return _name(code, instruction, _SCOPES)


def _name(code: CodeType, instruction: dis.Instruction, scopes: Mapping[str, Any]) -> Name | None:
    scope = scopes.get(instruction.opname)
    if scope == "enclosing" and instruction.argval not in code.co_freevars:
        scope = "local"  # that an inner function reads
    return None if scope is None else Name(scope, instruction.argval)
