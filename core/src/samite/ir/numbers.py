"""The integers of a function, apart from all else that it says: its form.

Programs of one function for inputs of other sizes rarely differ in anything else, and then what was compiled for one
serves another with other numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from functools import cache
from typing import Any

from samite.ir.context import TensorType
from samite.ir.graph import Constant, Graph, ListOf, Op, Slot, overload

__all__ = ["enumeration", "form_and_numbers", "is_number"]

_ENUMERATIONS = ("ScalarType", "Layout", "MemoryFormat")


def form_and_numbers(graph: Graph) -> tuple[str, tuple[int, ...]]:
    """A digest of all but integers, and these: for each of `graph.nodes` its literals and its results' shapes, then the
    arguments' shapes."""
    parts: list[Hashable] = [graph.returns, graph.aliases]
    numbers: list[int] = []

    def kind(type: TensorType) -> Hashable:
        return type.dtype, len(type.shape)

    for node in graph.nodes:
        rest, found = _split(node.op)
        numbers += found
        for type in node.op.results:
            numbers += type.shape
        parts.append((rest, node.operands, tuple(map(kind, node.op.results)), node.source))
    for argument in graph.arguments:
        numbers += argument.type.shape
        parts.append(kind(argument.type))
    return hashlib.sha256(repr(parts).encode()).hexdigest(), tuple(numbers)


@cache
def _split(op: Op) -> tuple[Hashable, tuple[int, ...]]:
    numbers: list[int] = []
    if op.name == "dist.valid_length":
        numbers.append(op.literals["size"])
    rest = tuple((key, value) for key, value in op.attributes if (op.name, key) != ("dist.valid_length", "size"))
    has_schema = not op.name.startswith(("dist.", "vtensor.", "constant."))
    form = tuple(_without_numbers(op, numbers)) if has_schema else op.form
    regions = tuple(map(form_and_numbers, op.regions))  # sizes vary outside of them
    return (op.name, rest, form, regions), tuple(numbers)


def _without_numbers(op: Op, numbers: list[int]) -> Iterator[Hashable]:
    for argument, item in zip(overload(op.name)._schema.arguments, op.form, strict=False):
        items = item.items if isinstance(item, ListOf) else (item,)
        numbers += [i.value for i in items if isinstance(i, Constant) and is_number(argument, i)]
        shown = tuple("number" if is_number(argument, i) else _text(i) for i in items)
        yield (item.type, *shown) if isinstance(item, ListOf) else shown


def _text(item: Slot | Constant) -> str:
    return f"{item.kind} {item.text}" if isinstance(item, Constant) else f"%{item.position}"


def is_number(argument: Any, item: Slot | Constant | ListOf) -> bool:
    """Whether `item`, given for an argument of a torch schema, is an integer. Codes of dtypes and the like are not."""
    return isinstance(item, Constant) and item.kind == "int" and not enumeration(argument)


def enumeration(argument: Any) -> str:
    """What the codes that an argument takes stand for: "ScalarType", "Layout", "MemoryFormat"; or ""."""
    kind = str(argument.real_type)  # `type` says int of all three
    return next((name for name in _ENUMERATIONS if name in kind), "")
