"""The `dist` dialect: layouts, reshards and collectives on the torch dialect's tensors.

Printed in MLIR's generic form; text and bytecode round-trip. No attribute is optional: `algorithm = "auto"` and
`chunk_bytes = 0` say "not chosen yet". Every op is pure: a collective whose result is unused is dead on every rank,
because one module serves all of them.
"""

# No `from __future__ import annotations` here: the dialect framework reads the annotations of ops as objects.

from collections.abc import Callable
from functools import cache
from typing import Any

from samite.errors import LayoutError
from samite.layout import Layout

__all__ = ["ALGORITHMS", "REDUCE_TYPES", "decode", "dist_dialect", "encode", "mesh_attribute", "read_mesh"]

REDUCE_TYPES = ("sum", "max", "min", "prod")
ALGORITHMS = ("auto", "direct", "ring", "tree", "hierarchical")


def _fail(op: Any, message: str) -> bool:
    op.location.emit_error(f"{op.operation.name}: {message}")
    return False


def _mesh_of(op: Any) -> dict[str, int] | None:
    """The mesh of the module around an op; None while the op is still detached."""
    at = op.operation.parent
    while at is not None:
        if at.operation.name == "builtin.module":
            attributes = at.operation.attributes
            return read_mesh(attributes["dist.mesh"]) if "dist.mesh" in attributes else None
        at = at.operation.parent
    return None


@cache
def _bindings() -> Any:
    from torch_mlir import ir  # an import statement on the hot path costs more than the call it serves

    return ir


def encode(value: Any) -> Any:
    """A string, an int (64 bits) or nested tuples of them as an MLIR attribute."""
    ir = _bindings()
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    return ir.ArrayAttr.get([encode(v) for v in value])


def decode(attribute: Any) -> Any:
    """The inverse of `encode`."""
    ir = _bindings()
    attribute = attribute.maybe_downcast()  # parameters of our own attributes come as plain `Attribute`
    if isinstance(attribute, ir.ArrayAttr):
        return tuple(decode(a) for a in attribute)
    return attribute.value


def read_mesh(attribute: Any) -> dict[str, int]:
    """Axis sizes of a `#dist.mesh` attribute, in mesh order."""
    return dict(zip(decode(attribute.axes), decode(attribute.sizes), strict=True))


def mesh_attribute(mesh: Any) -> Any:
    """`#dist.mesh<axes, sizes, kinds>` of a `Mesh`: kinds name the device kind of each stage."""
    return dist_dialect().MeshAttribute.get(encode(mesh.axes), encode(mesh.shape), encode(mesh.backends))


@cache
def dist_dialect() -> Any:
    """The dialect class; ops are its attributes (`dist_dialect().AllReduce`)."""
    from torch_mlir import ir
    from torch_mlir.dialects import ext
    from torch_mlir.dialects.ext import Operand, Result

    from samite.ir.context import tensor_type

    class Dist(ext.Dialect, name="dist"):
        pass

    class MeshAttribute(Dist.Attribute, name="mesh"):
        axes: ir.ArrayAttr
        sizes: ir.ArrayAttr
        kinds: ir.ArrayAttr

    def axes_ok(op: Any) -> bool:
        axes = op.attributes["axes"]
        names = [a.value for a in axes]
        if not names or len(set(names)) != len(names):
            return _fail(op, f"axes must be named once each, have {names}")
        mesh = _mesh_of(op)
        unknown = [a for a in names if mesh is not None and a not in mesh]
        return not unknown or _fail(op, f"axis {unknown} is not in the mesh {mesh}")

    def resized_ok(op: Any, grown: int | None, shrunk: int | None) -> bool:
        """The result is the operand with dim `grown` times and dim `shrunk` divided by the number of peers."""
        mesh = _mesh_of(op)
        source, target = tensor_type(op.operands[0].type), tensor_type(op.results[0].type)
        if mesh is None or source is None or target is None:
            return True
        parts, shape = 1, list(source.shape)
        for axis in op.attributes["axes"]:
            parts *= mesh[axis.value]
        for dim in (grown, shrunk):
            if dim is not None and not 0 <= dim < len(shape):
                return _fail(op, f"dim {dim} is beyond {len(shape)} dims")
        if shrunk is not None:
            if shape[shrunk] % parts:
                return _fail(op, f"dim {shrunk} of {shape} is not a multiple of {parts} peers")
            shape[shrunk] //= parts
        if grown is not None:
            shape[grown] *= parts
        if tuple(shape) != target.shape or source.dtype != target.dtype:
            return _fail(op, f"result must be {shape} of {source.dtype}, have {list(target.shape)} of {target.dtype}")
        return True

    def reduce_ok(op: Any) -> bool:
        kind = op.attributes["reduce_type"].value
        return kind in REDUCE_TYPES or _fail(op, f"reduce_type {kind!r} is none of {REDUCE_TYPES}")

    def algorithm_ok(op: Any) -> bool:
        name = op.attributes["algorithm"].value
        return name in ALGORITHMS or _fail(op, f"algorithm {name!r} is none of {ALGORITHMS}")

    def pairs_ok(op: Any) -> bool:
        ends = [tuple(n.value for n in pair) for pair in op.attributes["pairs"]]
        once = len({target for _, target in ends}) == len(ends)
        return once or _fail(op, f"pairs are (source, target) with each target once, have {ends}")

    def layout_ok(op: Any, name: str) -> bool:
        text = op.attributes[name].value
        try:
            layout = Layout.parse(text)
        except (LayoutError, ValueError) as error:
            return _fail(op, f"{name} {text!r} is no layout: {error}")
        type = tensor_type(op.results[0].type)
        return type is None or type.shape == layout.shape or _fail(op, f"{name} {text} does not lay out {type.shape}")

    def integer(op: Any, name: str) -> int:
        return op.attributes[name].value

    def check(test: Callable[[Any], bool]) -> Any:
        """A verifier. MLIR runs it before it has checked that the attributes are there and of their kind; where they
        are not, that check has the better message."""

        def verify_invariants(op: Any) -> bool:
            try:
                return test(op)
            except (KeyError, AttributeError):
                return True

        return staticmethod(verify_invariants)

    class Constrain(Dist.Operation, name="constrain", traits=[ext.Pure]):
        x: Operand[Any]
        layout: ir.StringAttr
        out: Result[Any]
        verify_invariants = check(lambda op: layout_ok(op, "layout"))

    class Reshard(Dist.Operation, name="reshard", traits=[ext.Pure]):
        x: Operand[Any]
        src: ir.StringAttr
        dst: ir.StringAttr
        out: Result[Any]
        verify_invariants = check(lambda op: layout_ok(op, "src") and layout_ok(op, "dst"))

    class OverAxes(Dist.Operation, traits=[ext.Pure]):
        x: Operand[Any]
        axes: ir.ArrayAttr

    class AllReduce(OverAxes, name="all_reduce"):
        reduce_type: ir.StringAttr
        algorithm: ir.StringAttr
        chunk_bytes: ir.IntegerAttr
        out: Result[Any]
        verify_invariants = check(
            lambda op: axes_ok(op) and reduce_ok(op) and algorithm_ok(op) and resized_ok(op, None, None)
        )

    class AllGather(OverAxes, name="all_gather"):
        dim: ir.IntegerAttr
        out: Result[Any]
        verify_invariants = check(lambda op: axes_ok(op) and resized_ok(op, integer(op, "dim"), None))

    class ReduceScatter(OverAxes, name="reduce_scatter"):
        dim: ir.IntegerAttr
        reduce_type: ir.StringAttr
        out: Result[Any]
        verify_invariants = check(lambda op: axes_ok(op) and reduce_ok(op) and resized_ok(op, None, integer(op, "dim")))

    class AllToAll(OverAxes, name="all_to_all"):
        split_dim: ir.IntegerAttr
        concat_dim: ir.IntegerAttr
        out: Result[Any]
        verify_invariants = check(
            lambda op: axes_ok(op) and resized_ok(op, integer(op, "concat_dim"), integer(op, "split_dim"))
        )

    class Permute(OverAxes, name="permute"):
        pairs: ir.ArrayAttr
        out: Result[Any]
        verify_invariants = check(lambda op: axes_ok(op) and pairs_ok(op) and resized_ok(op, None, None))

    class Shard(OverAxes, name="shard"):
        dim: ir.IntegerAttr
        out: Result[Any]
        verify_invariants = check(lambda op: axes_ok(op) and resized_ok(op, None, integer(op, "dim")))

    class AxisIndex(Dist.Operation, name="axis_index", traits=[ext.Pure]):
        axes: ir.ArrayAttr
        out: Result[Any]
        verify_invariants = check(axes_ok)

    Dist.MeshAttribute = MeshAttribute
    for made in (Constrain, Reshard, AllReduce, AllGather, ReduceScatter, AllToAll, Permute, Shard, AxisIndex):
        setattr(Dist, made.__name__, made)
    return Dist
