"""What the verifiers of ops with regions check: their functions take and give what the op does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samite.errors import VerifyError
from samite.ir.context import TensorType, tuple_types
from samite.ir.verifier import decoded, type_of

__all__ = ["branches", "loop", "scanned"]

_BOOL = TensorType((), "bool")


def branches(op: Any) -> str:
    """`dist.cond`: a bool; both regions take the inputs and give the results."""
    if type_of(op.operands[0]) != _BOOL:
        return f"the predicate must be one bool, have {_text([type_of(op.operands[0])])}"
    inputs, results = _tuple(op.operands[1]), _tuple(op.results[0])
    return _function(op, 0, "then", inputs, results) or _function(op, 1, "otherwise", inputs, results)


def loop(op: Any) -> str:
    """`dist.while`: both regions take all inputs; the condition gives a bool, the body what is carried."""
    inputs, results, carried = _tuple(op.operands[0]), _tuple(op.results[0]), decoded(op, "carried")
    if results != inputs[:carried]:
        return f"results must be what is carried, {_text(inputs[:carried])}, have {_text(results)}"
    return _function(op, 0, "condition", inputs, [_BOOL]) or _function(op, 1, "body", inputs, inputs[:carried])


def scanned(op: Any) -> str:
    """`dist.scan`: the body takes what is carried, a slice of each sliced input, and the others; it gives what is
    carried, and slices of the other results."""
    inputs, results = _tuple(op.operands[0]), _tuple(op.results[0])
    carried, sliced = decoded(op, "carried"), decoded(op, "sliced")
    whole = inputs[carried : carried + sliced] + results[carried:]
    lengths = {t.shape[:1] for t in whole}
    if not sliced or () in lengths or len(lengths) != 1:
        return f"sliced inputs and stacked results must have one length, have {_text(whole)}"
    slices = [TensorType(t.shape[1:], t.dtype) for t in whole]
    if results[:carried] != inputs[:carried]:
        return f"the first results must be what is carried, {_text(inputs[:carried])}, have {_text(results)}"
    takes = inputs[:carried] + slices[:sliced] + inputs[carried + sliced :]
    return _function(op, 0, "body", takes, inputs[:carried] + slices[sliced:])


def _function(op: Any, index: int, name: str, takes: Sequence[TensorType], gives: Sequence[TensorType]) -> str:
    blocks = list(op.operation.regions[index].blocks)
    if len(blocks) != 1:
        return f"{name} must be one block"
    arguments, last = [type_of(value) for value in blocks[0].arguments], list(blocks[0].operations)[-1].operation
    if arguments != list(takes):
        return f"{name} must take {_text(takes)}, takes {_text(arguments)}"
    if last.name != "dist.yield":
        return f"{name} must end with dist.yield, ends with {last.name}"
    if (given := _tuple(last.operands[0])) != list(gives):
        return f"{name} must give {_text(gives)}, gives {_text(given)}"
    return ""


def _tuple(value: Any) -> list[TensorType]:
    types = tuple_types(value.type)
    if types is None:
        raise VerifyError(f"a tuple of tensors is needed, have {value.type}")
    return list(types)


def _text(types: Sequence[TensorType]) -> str:
    return "(" + ", ".join(f"{t.dtype}{list(t.shape)}" for t in types) + ")"
