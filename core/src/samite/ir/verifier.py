"""What the verifiers of the dist dialect's ops check. A check takes an op and says what is wrong with it, or "".

MLIR runs them before it has checked that the attributes are there; where one is missing, its own check says so better.
What depends on the mesh is checked once the op stands in a module that has one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from samite.errors import LayoutError, VerifyError
from samite.ir.attributes import decode, read_mesh
from samite.ir.context import TensorType, tensor_type
from samite.layout import Layout

__all__ = [
    "ALGORITHMS",
    "REDUCE_TYPES",
    "Check",
    "between_peers",
    "checked",
    "index",
    "layouts",
    "one_of",
    "over_axes",
    "resized",
]

REDUCE_TYPES = ("sum", "max", "min", "prod")
ALGORITHMS = ("auto", "direct", "ring", "tree", "hierarchical")

Check = Callable[[Any], str]


class _Missing(Exception):
    """An attribute is not there."""


class _Wrong(Exception):
    """What is wrong with an op."""


def checked(*checks: Check) -> Any:
    """The `verify_invariants` of an op: the first complaint of these checks becomes its diagnostic."""

    def verify_invariants(op: Any) -> bool:
        try:
            found = next((text for check in checks if (text := check(op))), "")
        except _Missing:
            return True
        except (_Wrong, VerifyError) as error:
            found = str(error)
        if found:
            op.location.emit_error(f"{op.operation.name}: {found}")
        return not found

    return staticmethod(verify_invariants)


def over_axes(op: Any) -> str:
    """`axes` are axes of the mesh, each once."""
    axes, mesh = _axes(op), _mesh(op)
    if not axes or len(set(axes)) != len(axes):
        return f"axes must be named once each, have {list(axes)}"
    unknown = [axis for axis in axes if mesh is not None and axis not in mesh]
    return f"axis {unknown} is not in the mesh {mesh}" if unknown else ""


def one_of(name: str, known: tuple[str, ...]) -> Check:
    """The attribute is one of these words."""

    def check(op: Any) -> str:
        value = _decoded(op, name)
        return "" if value in known else f"{name} {value!r} is none of {known}"

    return check


def resized(grown: str = "", shrunk: str = "") -> Check:
    """The result is the operand, with the dim that attribute `grown` names as often as there are peers, and the one
    that `shrunk` names divided by their number."""

    def check(op: Any) -> str:
        source, target = _type(op.operands[0]), _type(op.results[0])
        shape, peers = list(source.shape), _peers(op) if grown or shrunk else 1
        if peers is None:
            return ""
        if shrunk:
            dim = _dim(op, shrunk, shape)
            if shape[dim] % peers:
                return f"dim {dim} of {shape} is not a multiple of {peers} peers"
            shape[dim] //= peers
        if grown:
            shape[_dim(op, grown, shape)] *= peers
        if (tuple(shape), source.dtype) == target:
            return ""
        return f"result must be {shape} of {source.dtype}, have {list(target.shape)} of {target.dtype}"

    return check


def between_peers(op: Any) -> str:
    """`pairs` are (source, target) of peers, each target once."""
    pairs, peers = _decoded(op, "pairs"), _peers(op)
    if not isinstance(pairs, tuple) or not all(map(_is_pair, pairs)):
        return f"pairs must be (source, target), have {pairs}"
    if len({target for _, target in pairs}) != len(pairs):
        return f"pairs must have each target once, have {pairs}"
    beyond = [end for pair in pairs for end in pair if peers is not None and not 0 <= end < peers]
    return f"pairs name peer {beyond[0]} of {peers}" if beyond else ""


def layouts(*names: str) -> Check:
    """These attributes spell layouts of the result on the mesh."""

    def check(op: Any) -> str:
        shape, mesh = _type(op.results[0]).shape, _mesh(op)
        for name in names:
            text = _decoded(op, name)
            try:
                layout = Layout.parse(str(text))
                if mesh is not None:
                    layout.canonical(mesh)
            except LayoutError as error:
                return f"{name} {text!r} is no layout: {error}"
            if layout.shape != shape:
                return f"{name} {text} does not lay out {shape}"
        return ""

    return check


def index(op: Any) -> str:
    """The result is a rank's index: a 0-d int64."""
    found = _type(op.results[0])
    return (
        ""
        if found == TensorType((), "int64")
        else f"result must be [] of int64, have {list(found.shape)} of {found.dtype}"
    )


def _decoded(op: Any, name: str) -> Any:
    if name not in op.attributes:
        raise _Missing
    try:
        return decode(op.attributes[name])
    except AttributeError:  # neither a string nor a number nor a list of them
        raise _Wrong(f"{name} cannot be {op.attributes[name]}") from None


def _axes(op: Any) -> tuple[str, ...]:
    axes = _decoded(op, "axes")
    if not isinstance(axes, tuple) or not all(isinstance(axis, str) for axis in axes):
        raise _Wrong(f"axes must be a list of names, have {axes!r}")
    return axes


def _peers(op: Any) -> int | None:
    """How many ranks the op's axes join; None without a mesh."""
    mesh = _mesh(op)
    return None if mesh is None else prod(mesh[axis] for axis in _axes(op))


def _dim(op: Any, name: str, shape: list[int]) -> int:
    dim = _decoded(op, name)
    if not isinstance(dim, int) or not 0 <= dim < len(shape):
        raise _Wrong(f"{name} {dim!r} is no dim of {len(shape)}")
    return dim


def _is_pair(end: Any) -> bool:
    return isinstance(end, tuple) and len(end) == 2 and all(isinstance(peer, int) for peer in end)


def _type(value: Any) -> TensorType:
    found = tensor_type(value.type)
    if found is None:
        raise _Wrong(f"a tensor is needed, have {value.type}")
    return found


def _mesh(op: Any) -> dict[str, int] | None:
    """The mesh of the module around an op; None while there is none."""
    at = op.operation.parent
    while at is not None:
        attributes = at.operation.attributes
        if "dist.mesh" in attributes:
            return read_mesh(attributes["dist.mesh"])
        at = at.operation.parent
    return None
