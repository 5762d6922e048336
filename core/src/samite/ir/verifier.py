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
    "between_kinds",
    "between_peers",
    "checked",
    "decoded",
    "index",
    "layouts",
    "natural",
    "one_of",
    "over_axes",
    "resized",
    "size_of_result",
    "type_of",
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
        value = decoded(op, name)
        return "" if value in known else f"{name} {value!r} is none of {known}"

    return check


def resized(grown: str = "", shrunk: str = "") -> Check:
    """The result is the operand, with the dim that attribute `grown` names as often as there are peers, and the one
    that `shrunk` names divided by their number."""

    def check(op: Any) -> str:
        rank = len(type_of(op.operands[0]).shape)
        grows, shrinks = (_dim(op, name, rank) if name else None for name in (grown, shrunk))
        return size_of_result(op, grows, shrinks)

    return check


def size_of_result(op: Any, grown: int | None, shrunk: int | None) -> str:
    """What is wrong with the result of an op that makes dim `grown` as many times as large as there are peers, and
    dim `shrunk` that much smaller."""
    source, target = type_of(op.operands[0]), type_of(op.results[0])
    shape, peers = list(source.shape), 1 if grown is None and shrunk is None else _peers(op)
    if peers is None:
        return ""
    if shrunk is not None:
        if shape[shrunk] % peers:
            return f"dim {shrunk} of {shape} is not a multiple of {peers} peers"
        shape[shrunk] //= peers
    if grown is not None:
        shape[grown] *= peers
    if (tuple(shape), source.dtype) == target:
        return ""
    return f"result must be {shape} of {source.dtype}, have {list(target.shape)} of {target.dtype}"


def between_kinds(*names: str) -> Check:
    """These attributes name device kinds of the mesh, each another one."""

    def check(op: Any) -> str:
        found, kinds = [decoded(op, name) for name in names], _kinds(op)
        if unknown := [kind for kind in found if kinds is not None and kind not in kinds]:
            return f"{unknown[0]!r} is no device kind of the mesh, which has {kinds}"
        return "" if len(set(found)) == len(found) else f"{found[0]!r} is on both ends"

    return check


def natural(name: str) -> Check:
    """The attribute is a number that counts something."""

    def check(op: Any) -> str:
        value = decoded(op, name)
        return "" if isinstance(value, int) and value >= 0 else f"{name} must be 0 or more, have {value!r}"

    return check


def between_peers(op: Any) -> str:
    """`pairs` are (source, target) of peers, each target once."""
    pairs, peers = decoded(op, "pairs"), _peers(op)
    if not isinstance(pairs, tuple) or not all(map(_is_pair, pairs)):
        return f"pairs must be (source, target), have {pairs}"
    if len({target for _, target in pairs}) != len(pairs):
        return f"pairs must have each target once, have {pairs}"
    beyond = [end for pair in pairs for end in pair if peers is not None and not 0 <= end < peers]
    return f"pairs name peer {beyond[0]} of {peers}" if beyond else ""


def layouts(*names: str) -> Check:
    """These attributes spell layouts of the result on the mesh."""

    def check(op: Any) -> str:
        shape, mesh = type_of(op.results[0]).shape, _mesh(op)
        for name in names:
            text = decoded(op, name)
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
    found = type_of(op.results[0])
    return (
        ""
        if found == TensorType((), "int64")
        else f"result must be [] of int64, have {list(found.shape)} of {found.dtype}"
    )


def decoded(op: Any, name: str) -> Any:
    """An attribute's plain value; to be called in checks."""
    if name not in op.attributes:
        raise _Missing
    try:
        return decode(op.attributes[name])
    except AttributeError:  # neither a string nor a number nor a list of them
        raise _Wrong(f"{name} cannot be {op.attributes[name]}") from None


def _axes(op: Any) -> tuple[str, ...]:
    axes = decoded(op, "axes")
    if not isinstance(axes, tuple) or not all(isinstance(axis, str) for axis in axes):
        raise _Wrong(f"axes must be a list of names, have {axes!r}")
    return axes


def _peers(op: Any) -> int | None:
    """How many ranks the op's axes join; None without a mesh."""
    mesh = _mesh(op)
    return None if mesh is None else prod(mesh[axis] for axis in _axes(op))


def _dim(op: Any, name: str, rank: int) -> int:
    dim = decoded(op, name)
    if not isinstance(dim, int) or not 0 <= dim < rank:
        raise _Wrong(f"{name} {dim!r} is no dim of {rank}")
    return dim


def _is_pair(end: Any) -> bool:
    return isinstance(end, tuple) and len(end) == 2 and all(isinstance(peer, int) for peer in end)


def type_of(value: Any) -> TensorType:
    """The type of an operand or result; to be called in checks."""
    found = tensor_type(value.type)
    if found is None:
        raise _Wrong(f"a tensor is needed, have {value.type}")
    return found


def _mesh(op: Any) -> dict[str, int] | None:
    """The mesh of the module around an op; None while there is none."""
    attribute = _mesh_attribute(op)
    return None if attribute is None else read_mesh(attribute)


def _kinds(op: Any) -> tuple[str, ...] | None:
    """The mesh's device kinds."""
    attribute = _mesh_attribute(op)
    return None if attribute is None else decode(attribute.kinds)


def _mesh_attribute(op: Any) -> Any:
    at = op.operation.parent
    while at is not None:
        attributes = at.operation.attributes
        if "dist.mesh" in attributes:
            return attributes["dist.mesh"]
        at = at.operation.parent
    return None
