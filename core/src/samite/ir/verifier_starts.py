"""What the verifiers of `dist.start` and `dist.wait` check, op by op. What ties them is for the pass `verify`."""

from __future__ import annotations

from typing import Any

from samite.ir.verifier import ALGORITHMS, REDUCE_TYPES, between_peers, decoded, size_of_result, type_of

__all__ = ["in_flight", "started"]

_STARTED: dict[str, tuple[bool, int | None, int | None]] = {
    "all_reduce": (True, None, None),
    "all_gather": (False, None, 0),
    "reduce_scatter": (True, 0, None),
    "all_to_all": (False, 0, 1),
    "permute": (False, None, None),
}
"""Whether a collective reduces, and which of its `dims` shrinks and grows."""


def started(op: Any) -> str:
    """The attributes fit the collective that is started, and the result is what that gives."""
    verb, dims, reduce_type = (decoded(op, name) for name in ("collective", "dims", "reduce_type"))
    if verb not in _STARTED:
        return f"collective {verb!r} is none of {tuple(_STARTED)}"
    reduces, shrunk, grown = _STARTED[verb]
    if reduce_type not in (REDUCE_TYPES if reduces else ("",)):
        return f"reduce_type {reduce_type!r} does not fit {verb}"
    if decoded(op, "algorithm") not in (ALGORITHMS if verb == "all_reduce" else ALGORITHMS[:1]):
        return f"algorithm {decoded(op, 'algorithm')!r} does not fit {verb}"
    wanted = len({shrunk, grown} - {None})
    if not isinstance(dims, tuple) or len(dims) != wanted:
        return f"{verb} has {wanted} dims, have {dims}"
    rank = len(type_of(op.operands[0]).shape)
    if wrong := [dim for dim in dims if not isinstance(dim, int) or not 0 <= dim < rank]:
        return f"dim {wrong[0]!r} is no dim of {rank}"
    found = between_peers(op) if verb == "permute" else f"{verb} has no pairs" if decoded(op, "pairs") else ""
    return found or size_of_result(op, *(None if at is None else dims[at] for at in (grown, shrunk)))


def in_flight(op: Any) -> str:
    """The operand is the result of a `dist.start`."""
    owner = op.operands[0].owner
    name = "an argument" if not hasattr(owner, "name") else owner.name
    return "" if name == "dist.start" else f"waits for the result of a dist.start, have that of {name}"
