"""What a placement does and costs, in words."""

from __future__ import annotations

from collections.abc import Iterator

from samite.layout import axes_of
from samite.passes.placement.assignment import UPDATE, Assignment
from samite.passes.roofline import flops, moves_nothing
from samite.passes.words import bytes_in_words, seconds_in_words
from samite.rules.binding import bind

__all__ = ["cost_in_words", "split_in_words"]

MOST = 0.5
"""The part of the arithmetic, or of the state, from which on an axis is said to split it."""


def cost_in_words(placed: Assignment) -> str:
    """Time of a call and memory of a rank."""
    time = f"{seconds_in_words(placed.seconds)} a call"
    if placed.communicating:
        time += f", {seconds_in_words(placed.communicating)} of it communicating"
    return f"{time}; {bytes_in_words(placed.peak.nbytes)} a rank"


def split_in_words(placed: Assignment) -> str:
    """What each axis splits: "dp the batch and the state; tp the weights"."""
    found: list[str] = []
    for axis, size in placed.mesh.items():
        if size == 1:
            continue
        batch, weights = _arithmetic(placed, axis)
        parts = [name for name, part in (("the batch", batch), ("the weights", weights)) if part >= MOST]
        if _state(placed, axis) >= MOST:
            parts.append("what is stored")
        found.append(f"{axis} {' and '.join(parts) or 'little'}")
    return "; ".join(found)


def _arithmetic(placed: Assignment, axis: str) -> tuple[float, float]:
    """Of the forward arithmetic with state (linears, convolutions): the parts in which the axis splits a letter that
    the state does not have, and one that it has."""
    batch = weights = total = 0.0
    of_state = _moved(placed)
    for node, made in zip(placed.graph.nodes, placed.plans, strict=True):
        if node.source.phase in ("backward", UPDATE) or not flops(node.op):
            continue
        groups = bind(node.op).operands
        letters = {x for o, g in zip(node.operands, groups, strict=True) if o in of_state for group in g for x in group}
        if not letters:
            continue
        total += flops(node.op)
        split = {letter for letter, dim in made.given.items() if axis in axes_of(dim)}
        batch += flops(node.op) * bool(split - letters)
        weights += flops(node.op) * bool(split & letters)
    return (batch / total, weights / total) if total else (0.0, 0.0)


def _moved(placed: Assignment) -> set[int]:
    """State, and what only looks at it in another way."""
    found = set(range(len(placed.graph.arguments))) - set(placed.inputs)
    for node in placed.graph.nodes:
        if moves_nothing(node.op.name) and any(o in found for o in node.operands):
            found.update(node.results)
    return found


def _state(placed: Assignment, axis: str) -> float:
    """The part of the state that the axis splits where it is stored."""
    sizes = list(_state_bytes(placed, axis))
    total = sum(size for size, _ in sizes)
    return sum(size for size, split in sizes if split) / total if total else 0.0


def _state_bytes(placed: Assignment, axis: str) -> Iterator[tuple[int, bool]]:
    for i, (argument, layout) in enumerate(zip(placed.graph.arguments, placed.arguments, strict=True)):
        if i not in placed.inputs:
            yield placed.costs.nbytes(argument.type, layout), axis in layout.axes
